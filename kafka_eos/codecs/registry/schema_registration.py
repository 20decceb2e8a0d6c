"""Schemas as they are to be registered. What one refers to has a subject, and in a registry it has a version there.

Rule: what a schema refers to is registered before it, and in the same way: only where the user has said so.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka_eos.codecs.registry.registry_client import Reference, RegisteredSchema, Registry
from kafka_eos.codecs.registry.unknown_schemas import NotKnown, Unknown


@dataclass(frozen=True, slots=True)
class Draft:
    """A schema, and what it needs. ``kind`` is AVRO, PROTOBUF or JSON."""

    kind: str
    text: str
    needs: tuple[Need, ...] = ()

    def subjects(self) -> list[str]:
        """Of all that it needs, each before whoever needs it."""
        found = [subject for need in self.needs for subject in (*need.draft.subjects(), need.subject)]
        return list(dict.fromkeys(found))


@dataclass(frozen=True, slots=True)
class Need:
    """Another schema, under the ``name`` by which it is referred to, and the ``subject`` in which it is."""

    name: str
    subject: str
    draft: Draft


class NotRegistered(NotKnown):
    """A subject does not have what a schema refers to."""

    def __init__(self, need: Need) -> None:
        super().__init__(f"it refers to {need.name}, which subject {need.subject} does not have")


def looked_up(draft: Draft, registry: Registry) -> RegisteredSchema:
    """With the versions of what it needs. NotRegistered if one of them is not there."""
    references = []
    for need in draft.needs:
        version = registry.version_of(need.subject, looked_up(need.draft, registry))
        if version is None:
            raise NotRegistered(need)
        references.append(Reference(need.name, need.subject, version))
    return RegisteredSchema(draft.kind, draft.text, tuple(references))


def register(subject: str, draft: Draft, registry: Registry, unknown: Unknown) -> None:
    """It, and before it all that it needs. ConfigError if the registry refuses one of them.

    ``unknown`` waits until the server that is asked has heard of what another one has registered.
    """
    for need in draft.needs:
        register(need.subject, need.draft, registry, unknown)
    registry.register(subject, unknown.waited_for(subject, lambda: looked_up(draft, registry)))
