"""An Avro schema divided into parts: types with subjects of their own are referred to by name.

Pure. Rule: together with its references, each part means the same as the whole schema. Avro defines a name once: a
definition in a referenced part is only named elsewhere.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from kafka_eos.codecs.registry.schema_registration import SchemaDependency, UnregisteredSchema
from kafka_eos.core.errors import PlanError


def split_by_subject(schema: dict[str, Any], namespace: str | None, subjects: Mapping[str, str]) -> UnregisteredSchema:
    """Split a schema into parts with subjects of their own.

    Raises PlanError if two parts need each other, or if both define a third type.
    """
    return _SchemaSplitter(schema, namespace, subjects).draft(schema["name"])


class _SchemaSplitter:
    def __init__(self, schema: Any, namespace: str | None, subjects: Mapping[str, str]) -> None:
        self._namespace = namespace
        self._subjects = {**subjects, schema["name"]: ""}  # no reference may contain the whole schema again
        self._definitions: dict[str, Any] = {}
        self._flat(schema)

    def draft(self, name: str) -> UnregisteredSchema:
        """Return the part whose top type has that name."""
        known = self._defined(name, ())
        needs = tuple(
            SchemaDependency(self._full(each), self._subjects[each], self.draft(each)) for each in self._needed(name)
        )
        whole = self._whole(name, {each for each, part in known.items() if part != name})
        at = {} if self._namespace is None else {"namespace": self._namespace}
        return UnregisteredSchema("AVRO", json.dumps({**at, **whole}), needs)

    def _defined(self, name: str, outer: tuple[str, ...]) -> dict[str, str]:
        """Return the types that are known behind a part, each with the part that defines it.

        ``outer``: the parts that need it.
        """
        if name in outer:
            raise PlanError(f"references={{…}}: {' and '.join(outer[outer.index(name) :])} contain each other")
        found: dict[str, str] = {}
        for need in self._needed(name):
            for each, part in self._defined(need, (*outer, name)).items():
                if found.setdefault(each, part) != part:
                    both = f"{found[each]} and {part} both contain {each}"
                    raise PlanError(f"references={{…}}: {both}: give it a subject too")
        for each in self._inside(name) - self._subjects.keys():
            found.setdefault(each, name)
        return {**found, name: name}

    def _full(self, name: str) -> str:
        return name if self._namespace is None else f"{self._namespace}.{name}"

    def _flat(self, schema: Any) -> Any:
        """Return the schema with names in place of definitions, which are recorded."""
        if isinstance(schema, list):
            return [self._flat(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        made = _changed(schema, self._flat)
        if "name" not in made:
            return made
        self._definitions[made["name"]] = made
        return made["name"]

    def _whole(self, schema: Any, known: set[str]) -> Any:
        """Return the schema with definitions again, except ``known`` ones; it adds the others to ``known``."""
        if isinstance(schema, list):
            return [self._whole(each, known) for each in schema]
        if isinstance(schema, str):
            if schema in known or schema not in self._definitions:
                return schema
            known.add(schema)
            schema = self._definitions[schema]
        return _changed(schema, lambda part: self._whole(part, known))

    def _inside(self, name: str) -> set[str]:
        """Return the types within a part, and those that it refers to."""
        found, waiting = {name}, [name]
        while waiting:
            for each in _named(self._definitions[waiting.pop()]):
                if each in self._definitions and each not in found:
                    found.add(each)
                    if each not in self._subjects:
                        waiting.append(each)
        return found

    def _needed(self, name: str) -> list[str]:
        return sorted(each for each in self._inside(name) if each in self._subjects and each != name)


def _changed(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the schema with the schemas directly below it changed."""
    made = {word: change(part) if word in ("items", "values") else part for word, part in schema.items()}
    if "fields" in made:
        made["fields"] = [{**field, "type": change(field["type"])} for field in made["fields"]]
    return made


def _named(schema: Any) -> Iterator[str]:
    """Yield the names of types directly below a schema whose definitions are elsewhere."""
    if isinstance(schema, str):
        yield schema
    elif isinstance(schema, list):
        for each in schema:
            yield from _named(each)
    else:
        for part in ("items", "values"):
            if part in schema:
                yield from _named(schema[part])
        for field in schema.get("fields", ()):
            yield from _named(field["type"])
