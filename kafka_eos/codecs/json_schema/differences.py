"""Differences between two JSON schemas, and reasons why values of one are invalid for the other, as lines for
messages.

Pure, for schemas from ``draft_07``. Rule: each line names the value by its path, and states the registered and the
declared version. Descriptive keywords, such as titles and defaults, are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice, repeat
from typing import Any, Final

from kafka_eos.codecs.comparison_lines import collect_lines
from kafka_eos.codecs.json_schema.draft_07 import Schema

_DESCRIBING: Final = frozenset({
    "title", "description", "default", "examples", "$comment", "$id", "$schema", "readOnly", "writeOnly", "deprecated",
    "definitions",
})  # fmt: skip
_COMPARED: Final = frozenset({"type", "properties", "required", "items", "enum", "const", "anyOf", "oneOf", "allOf"})
"""Keywords with their own comparison."""
_AT_LEAST: Final = ("minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties")
_AT_MOST: Final = ("maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties")
_THE_SAME: Final = ("pattern", "format", "multipleOf", "uniqueItems")
_MOST_HOPS: Final = 64
"""The maximum of references that lead to another reference."""
_MOST_STEPS: Final = 20_000
_CONSTANTS_PER_STEP: Final = 50
_MOST_MERGED: Final = 200_000
"""Keywords and properties in all schemas that ``allOf`` puts together."""
_MOST_SHOWN: Final = 8
"""Alternatives of a type in a message."""
_TOO_LARGE: Final = "the schemas are too large to be compared"


class SchemaSide:
    """One of two compared schemas, with the definitions that it refers to."""

    def __init__(self, schema: Schema, others: Mapping[str, Schema]) -> None:
        self.schema, self._others = schema, others
        self._known: dict[int, tuple[Schema, Schema]] = {}
        """By the address of a schema: itself, so that no other one gets that, and what it is."""
        self._parts: dict[int, tuple[Schema, list[Any]]] = {}
        self._merged = 0

    def resolved(self, schema: Schema, hops: int = _MOST_HOPS) -> Schema:
        """Return the schema behind all references. Raises ValueError if a definition is missing, or if references are
        circular.

        Repeated calls return the same object: so a traversal of recursive schemas ends.
        """
        if id(schema) not in self._known:
            self._known[id(schema)] = schema, self._resolved(schema, hops)
        return self._known[id(schema)][1]

    def _resolved(self, schema: Schema, hops: int) -> Schema:
        if hops == 0:
            raise ValueError("it refers to itself")
        if isinstance(schema, bool):
            return schema
        if several := schema.get("allOf"):
            rest = {word: content for word, content in schema.items() if word != "allOf"}
            return self._together([*(self.resolved(each, hops - 1) for each in several), rest])
        return self.resolved(self._meant(str(schema["$ref"])), hops - 1) if "$ref" in schema else schema

    def _together(self, schemas: Sequence[Schema]) -> Schema:
        for schema in schemas:
            self._merged += 0 if isinstance(schema, bool) else len(schema) + len(schema.get("properties", ()))
        if self._merged > _MOST_MERGED:
            raise ValueError(_TOO_LARGE)
        return _together(schemas)

    def alternatives(self, schema: dict[str, Any]) -> list[Any]:
        """Return the alternatives of a value; the schema itself if there are none.

        Repeated calls return the same objects.
        """
        if id(schema) not in self._parts:
            self._parts[id(schema)] = schema, _alternatives(schema)
        return self._parts[id(schema)][1]

    def _meant(self, reference: str) -> Schema:
        name, _, path = reference.partition("#")
        found: Any = self._others.get(name) if name else self.schema
        for step in path.strip("/").split("/") if path.strip("/") else ():
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get("definitions" if step == "$defs" else step) if isinstance(found, dict) else None
        if not isinstance(found, dict | bool):
            raise ValueError(f"it refers to {reference!r}, which does not exist")
        return found


def _together(schemas: Sequence[Schema]) -> Schema:
    """Merge schemas that apply together; the last one wins for each keyword, but properties are merged."""
    made: dict[str, Any] = {}
    for schema in schemas:
        if schema is False:
            return False
        for word, content in schema.items() if isinstance(schema, dict) else ():
            if word == "properties":
                made[word] = {**made.get(word, {}), **content}
            elif word == "required":
                made[word] = sorted({*made.get(word, ()), *content})
            else:
                made[word] = content
    return made


def differences(there: SchemaSide, here: SchemaSide) -> list[str]:
    return collect_lines(_Differences(there, here).between(there.schema, here.schema, ""))


def obstacles(there: SchemaSide, here: SchemaSide) -> list[str]:
    """Return why values of ``there``, or some of them, are invalid for ``here``."""
    return collect_lines(_Obstacles(there, here).between(there.schema, here.schema, ""))


class _SchemaComparison:
    def __init__(
        self,
        there: SchemaSide,
        here: SchemaSide,
        met: Iterable[tuple[int, int]] = (),
        steps: Iterator[int] | None = None,
    ):
        self._there = there
        self._here = here
        self._met = set(met)
        self._steps = iter(range(_MOST_STEPS)) if steps is None else steps
        """The remaining steps. Alternatives within alternatives may take longer than a user waits."""

    def between(self, there: Schema, here: Schema, at: str) -> Iterator[str]:
        there, here = self._there.resolved(there), self._here.resolved(here)
        if next(islice(self._steps, _constants_compared(there, here) // _CONSTANTS_PER_STEP, None), None) is None:
            raise ValueError(_TOO_LARGE)
        pair = (id(there), id(here))
        if pair in self._met and isinstance(there, dict) and isinstance(here, dict):
            return
        self._met.add(pair)
        yield from self.compared(there, here, at)

    def compared(self, there: Schema, here: Schema, at: str) -> Iterator[str]:
        raise NotImplementedError

    def unlike(self, there: Schema, here: Schema, at: str) -> str:
        return f"{at or 'the value'} is {as_text(there, self._there)} there, {as_text(here, self._here)} here"


class _Differences(_SchemaComparison):
    def compared(self, there: Schema, here: Schema, at: str) -> Iterator[str]:
        if isinstance(there, bool) or isinstance(here, bool):
            if there is not here:
                yield self.unlike(there, here, at)
            return
        registered, declared = self._there.alternatives(there), self._here.alternatives(here)
        if len(registered) != len(declared) or _kind(there) != _kind(here) or _constants(there) != _constants(here):
            yield self.unlike(there, here, at)
            return
        if len(registered) > 1:
            for one, other in zip(registered, declared, strict=True):
                yield from self.between(one, other, at)
        yield from self._properties(there, here, at)
        yield from self._items(there, here, at)
        for word in sorted((there.keys() | here.keys()) - _DESCRIBING - _COMPARED):
            one, other = there.get(word, _NONE), here.get(word, _NONE)
            if word in ("additionalProperties", "additionalItems", "propertyNames", "contains", "not"):
                inner = f"{at}{{}}" if word == "additionalProperties" else f"{at}.{word}"
                yield from self.between(True if one is _NONE else one, True if other is _NONE else other, inner)
            elif one != other or type(one) is not type(other):
                yield f"{at or 'the value'} has {_said(word, one)} there, {_said(word, other)} here"

    def _properties(self, there: dict[str, Any], here: dict[str, Any], at: str) -> Iterator[str]:
        registered, declared = there.get("properties", {}), here.get("properties", {})
        for name in registered | declared:
            path = f"{at}.{name}" if at else name
            if name not in declared:
                yield f"{path} ({as_text(registered[name], self._there)}) is only there"
            elif name not in registered:
                yield f"{path} ({as_text(declared[name], self._here)}) is only here"
            else:
                yield from self.between(registered[name], declared[name], path)
        for name in sorted({*there.get("required", ())} ^ {*here.get("required", ())}):
            if (name in registered) == (name in declared):
                where = "there, but not here" if name in there.get("required", ()) else "here, but not there"
                yield f"{at}.{name} must be {where}" if at else f"{name} must be {where}"

    def _items(self, there: dict[str, Any], here: dict[str, Any], at: str) -> Iterator[str]:
        one, other = there.get("items", True), here.get("items", True)
        if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
            for number, (registered, declared) in enumerate(zip(one, other, strict=True)):
                yield from self.between(registered, declared, f"{at}[{number}]")
        elif isinstance(one, list) or isinstance(other, list):
            if one != other:
                yield self.unlike(there, here, at)
        else:
            yield from self.between(one, other, f"{at}[]")


class _Obstacles(_SchemaComparison):
    def compared(self, there: Schema, here: Schema, at: str) -> Iterator[str]:
        if here is True or here == {} or there is False:
            return
        if here is False:
            yield f"{at or 'the value'} may not be here"
            return
        there = {} if there is True else there
        assert isinstance(there, dict)
        assert isinstance(here, dict)
        if len(each := self._there.alternatives(there)) > 1:
            for one in each:
                yield from self.between(one, here, at)
        elif len(declared := self._here.alternatives(here)) > 1:
            if not any(self._fits(there, one) for one in declared):
                yield self.unlike(there, here, at)
        else:
            yield from self._alone(there, here, at)

    def _fits(self, there: Schema, here: Schema) -> bool:
        """Compare two schemas. A pair that is already being compared counts as compatible, so recursive schemas end."""
        inner = _Obstacles(self._there, self._here, self._met, self._steps)
        return next(inner.between(there, here, ""), None) is None

    def _alone(self, there: dict[str, Any], here: dict[str, Any], at: str) -> Iterator[str]:
        allowed = _constants(here)
        if allowed is not None:
            if _constants(there) is None or not set(_constants(there) or ()) <= set(allowed):
                yield self.unlike(there, here, at)
            return
        registered, declared = _kind(there), _kind(here)
        if not (
            declared in (registered, None)
            or (registered, declared) == ("integer", "number")
            or _constants_are(there, declared)
        ):
            yield self.unlike(there, here, at)
            return
        yield from self._narrower(there, here, at)
        if declared in ("object", None):
            yield from self._properties(there, here, at)
        if declared in ("array", None):
            yield from self._items(there.get("items", True), here.get("items", True), at)

    def _items(self, there: Any, here: Any, at: str) -> Iterator[str]:
        if not isinstance(there, list) and not isinstance(here, list):
            yield from self.between(there, here, f"{at}[]")
            return
        one, other = (each if isinstance(each, list) else repeat(each) for each in (there, here))
        for number, (registered, declared) in enumerate(zip(one, other, strict=False)):
            yield from self.between(registered, declared, f"{at}[{number}]")

    def _narrower(self, there: dict[str, Any], here: dict[str, Any], at: str) -> Iterator[str]:
        for word in (*_AT_LEAST, *_AT_MOST, *_THE_SAME):
            if word not in here:
                continue
            one, other = there.get(word), here[word]
            if one is None or (word in _THE_SAME and one != other):
                wrong = True
            else:
                wrong = (word in _AT_LEAST and one < other) or (word in _AT_MOST and one > other)
            if wrong:
                registered_value = _said(word, _NONE if one is None else one)
                yield f"{at or 'the value'} has {registered_value} there, {_said(word, other)} here"

    def _properties(self, there: dict[str, Any], here: dict[str, Any], at: str) -> Iterator[str]:
        registered, declared = there.get("properties", {}), here.get("properties", {})
        others, mine = there.get("additionalProperties", True), here.get("additionalProperties", True)
        required, sure = here.get("required", ()), there.get("required", ())
        for name, schema in declared.items():
            path = f"{at}.{name}" if at else name
            if name in registered:
                yield from self.between(registered[name], schema, path)
            elif name not in required and not isinstance(others, bool):
                yield from self.between(others, schema, path)
            if name in required and name not in sure:
                yield f"{path} may be missing there, and must be here" if name in registered else f"{path} is only here"
        for name, schema in registered.items():
            if name not in declared:
                yield from self.between(schema, mine, f"{at}.{name}" if at else name)
        if mine is not True and others is not False and not (mine is False and others is True and not registered):
            yield from self.between(others, mine, f"{at}{{}}")


_NONE: Final = object()


def _alternatives(schema: dict[str, Any]) -> list[Any]:
    for word in ("anyOf", "oneOf"):
        if isinstance(found := schema.get(word), list) and found:
            return found
    kinds = schema.get("type")
    if isinstance(kinds, list):
        return [{**schema, "type": kind} for kind in kinds] if len(kinds) > 1 else [schema]
    return [schema]


def _kind(schema: dict[str, Any]) -> str | None:
    kind = schema.get("type")
    if isinstance(kind, list):
        return str(kind[0]) if len(kind) == 1 else ",".join(sorted(map(str, kind)))
    return None if kind is None else str(kind)


def _constants(schema: dict[str, Any]) -> tuple[str, ...] | None:
    """Return all allowed values, as JSON; None if they are not listed."""
    if "const" in schema:
        return (json.dumps(schema["const"], sort_keys=True),)
    found = schema.get("enum")
    return tuple(json.dumps(each, sort_keys=True) for each in found) if isinstance(found, list) else None


def _constants_compared(*schemas: Schema) -> int:
    listed = (each.get("enum") for each in schemas if isinstance(each, dict))
    return sum(len(each) for each in listed if isinstance(each, list))


_KINDS: Final = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    type(None): "null",
    list: "array",
    dict: "object",
}


def _constants_are(schema: dict[str, Any], kind: str | None) -> bool:
    """Return whether all constants are of that kind. With constants, a schema need not declare a type."""
    found = _constants(schema)
    kinds = {_KINDS[type(json.loads(each))] for each in found or ()}
    return bool(found) and (kinds == {kind} or (kind == "number" and kinds <= {"integer", "number"}))


def _said(word: str, content: Any) -> str:
    return f"no {word}" if content is _NONE else f"{word} {json.dumps(content)}"


def as_text(schema: Schema, side: SchemaSide, depth: int = 4) -> str:
    """Return a type as text, for messages."""
    schema = side.resolved(schema)
    if isinstance(schema, bool):
        return "anything" if schema else "nothing"
    if len(each := side.alternatives(schema)) > 1:
        if not depth:
            return "one of several"
        more = " | …" if len(each) > _MOST_SHOWN else ""
        return " | ".join(as_text(one, side, max(0, depth - 2)) for one in each[:_MOST_SHOWN]) + more
    if (constants := _constants(schema)) is not None:
        return constants[0] if len(constants) == 1 else f"one of {', '.join(constants[:20])}"
    kind = _kind(schema)
    if kind == "array" and not isinstance(schema.get("items", True), list) and depth:
        return f"array of {as_text(schema.get('items', True), side, depth - 1)}"
    if kind == "object" and "title" in schema:
        return f"object {schema['title']}"
    shown = kind or "anything"
    return f"{shown} ({schema['format']})" if isinstance(schema.get("format"), str) else shown
