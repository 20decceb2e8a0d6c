"""References between registered schemas."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from kafka_eos.codecs.registry.registry_client import Reference, RegisteredSchema, Registry
from kafka_eos.codecs.registry.unknown_schemas import SchemaNotFound
from kafka_eos.codecs.type_inspection import type_name
from kafka_eos.core.errors import PlanError, RegistryUnavailable

_DEEPEST: Final = 32
"""Maximum depth of references."""
_MOST: Final = 1000
"""Maximum number of direct and indirect references of a schema: each is a request."""
_MOST_TEXT: Final = 4 << 20
"""Maximum number of characters of a schema with all schemas that it refers to: they are parsed together."""
_MOST_SECONDS: Final = 30.0
"""The time limit of all these requests."""


def subjects_of(given: Mapping[type, str], named: Mapping[str, type], whole: type) -> dict[str, str]:
    """Return the user's subjects of types in ``whole``, by their names there.

    Raises PlanError for a type that is not in it.
    """
    names = {tp: name for name, tp in named.items() if tp is not whole}
    for tp, subject in given.items():
        if tp not in names:
            held = ", ".join(type_name(each) for each in names) or "none"
            raise PlanError(
                f"references={{{type_name(tp)}: …}}: {type_name(whole)} does not contain this type; it contains: {held}"
            )
        if not subject:
            raise PlanError(
                f"references={{{type_name(tp)}: {subject!r}}}: the subject must be a string that is not empty"
            )
    return {names[tp]: subject for tp, subject in given.items()}


def fetch_references(schema: RegisteredSchema, registry: Registry) -> dict[str, RegisteredSchema]:
    """Fetch all schemas that a schema refers to, dependencies first.

    Raises SchemaNotFound if one is missing, ValueError if one name stands for two schemas, if references are circular
    or if they are too many or too large, and RegistryUnavailable if the registry takes too long.
    """
    walk = _ReferenceResolver(registry, len(schema.text))
    walk.down(schema, _DEEPEST)
    return walk.found


class _ReferenceResolver:
    """Fetches referenced schemas, each once."""

    def __init__(self, registry: Registry, text: int) -> None:
        self._registry, self._text = registry, text
        self._until = time.monotonic() + _MOST_SECONDS
        self._walked: dict[tuple[str, int], RegisteredSchema] = {}
        self.found: dict[str, RegisteredSchema] = {}

    def down(self, schema: RegisteredSchema, deepest: int) -> None:
        if deepest == 0:
            raise ValueError(f"its references are more than {_DEEPEST} deep")
        for reference in schema.references:
            at = reference.subject, reference.version
            if at not in self._walked:
                other = self._asked(reference)
                self.down(other, deepest - 1)
                self._walked[at] = other
            if self.found.setdefault(reference.name, self._walked[at]) != self._walked[at]:
                raise ValueError(f"it refers to two schemas as {reference.name!r}")

    def _asked(self, reference: Reference) -> RegisteredSchema:
        if len(self._walked) >= _MOST:
            raise ValueError(f"it refers to more than {_MOST} schemas")
        if time.monotonic() > self._until:
            raise RegistryUnavailable(
                f"the schema registry {self._registry.url} has not returned the schemas that a schema refers to within "
                f"{_MOST_SECONDS:g} s"
            )
        other = self._registry.referenced(reference)
        if other is None:
            raise SchemaNotFound(
                f"it refers to version {reference.version} of {reference.subject!r}, which does not exist"
            )
        self._text += len(other.text)
        if self._text > _MOST_TEXT:
            raise ValueError(f"it has more than {_MOST_TEXT:,} characters with the schemas that it refers to")
        return other
