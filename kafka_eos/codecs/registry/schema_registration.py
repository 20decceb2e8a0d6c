"""Registration of schemas. A referenced schema has its own subject, and in a registry a version there.

Rule: referenced schemas are registered first, and in the same way: only if the user has allowed it.
"""

from __future__ import annotations

from msgspec import Struct

from kafka_eos.codecs.registry.registry_client import Reference, RegisteredSchema, Registry
from kafka_eos.codecs.registry.unknown_schemas import SchemaLookupRetry, SchemaNotFound


class UnregisteredSchema(Struct, frozen=True):
    """A schema to register, with the schemas that it refers to. ``kind`` is AVRO, PROTOBUF or JSON."""

    kind: str
    text: str
    needs: tuple[SchemaDependency, ...] = ()

    def subjects(self) -> list[str]:
        """Return the subjects of all required schemas, dependencies first."""
        found = [subject for need in self.needs for subject in (*need.draft.subjects(), need.subject)]
        return list(dict.fromkeys(found))


class SchemaDependency(Struct, frozen=True):
    """A schema that another one refers to, by reference name and subject."""

    name: str
    subject: str
    draft: UnregisteredSchema


class ReferenceNotRegistered(SchemaNotFound):
    """A subject lacks a version that a schema refers to."""

    def __init__(self, need: SchemaDependency) -> None:
        super().__init__(f"it refers to {need.name}, which subject {need.subject} does not have")


def resolve_versions(draft: UnregisteredSchema, registry: Registry) -> RegisteredSchema:
    """Resolve a schema's references to registered versions. Raises ReferenceNotRegistered if one of them is missing."""
    references = []
    for need in draft.needs:
        version = registry.version_of(need.subject, resolve_versions(need.draft, registry))
        if version is None:
            raise ReferenceNotRegistered(need)
        references.append(Reference(need.name, need.subject, version))
    return RegisteredSchema(draft.kind, draft.text, tuple(references))


def register(subject: str, draft: UnregisteredSchema, registry: Registry, unknown: SchemaLookupRetry) -> None:
    """Register a schema, and its dependencies first. Raises ConfigError if the registry rejects one of them.

    ``unknown`` waits until the queried server knows what another server has registered.
    """
    for need in draft.needs:
        register(need.subject, need.draft, registry, unknown)
    registry.register(subject, unknown.retry(subject, lambda: resolve_versions(draft, registry)))
