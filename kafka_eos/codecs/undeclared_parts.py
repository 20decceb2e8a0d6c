"""Parts of values whose type is not declared: a field of type Any, or the elements of a bare list or dict.

A format without a schema reads a record, an enum or a set back as a dict, a text or a list. Rule: such a part must come
back equal and of the same class, or its row is rejected. Which types have such parts is found out once per type, and
values of other types are not looked at. Parts that consist of builtins of the format need no comparison.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import chain
from operator import attrgetter
from types import NoneType
from typing import Any, Final, TypeAlias

from msgspec import inspect

from kafka_eos.codecs.returned_values import consist_of, unchanged
from kafka_eos.codecs.type_inspection import is_model, iterate_parts

_JSON: Final[frozenset[type]] = frozenset((dict, list, str, int, float, bool, NoneType))
_MSGPACK: Final[frozenset[type]] = _JSON | {bytes}
"""Classes whose values come back unchanged, or as values that are not equal."""

_Find: TypeAlias = Callable[[list[Any]], list[Any]]
"""Returns the undeclared parts of many values of one type, by loops that run in C."""

_BAD: Final = (AttributeError, LookupError, TypeError)
"""Raised for a value that is not of its declared class."""


class UndeclaredParts:
    """The undeclared parts of values of one type, in one format."""

    def __init__(self, find: _Find, builtins: frozenset[type]) -> None:
        self._find = find
        self._builtins = builtins

    @classmethod
    def in_msgpack(cls, tp: Any) -> UndeclaredParts | None:
        """Return None if a type declares all that its values hold. Raises TypeError if msgspec does not know it.

        pydantic converts a model to what JSON has first, so a model is such a part as a whole.
        """
        found = _compile(inspect.type_info(tp), lambda model: _return_all)
        return None if found is None else cls(found, _MSGPACK)

    @classmethod
    def in_json(cls, tp: Any) -> UndeclaredParts | None:
        """The same for a format that compares equal values itself, and is left with those that differ in class."""
        found = _compile(inspect.type_info(tp), lambda model: partial(_find_in_model, _undeclared_fields(model)))
        return None if found is None else cls(found, _JSON)

    def are_plain(self, values: list[Any]) -> bool:
        """Return whether the parts of all values consist of builtins."""
        try:
            return consist_of(self._builtins, self._find(values))
        except _BAD:
            return False

    def are_unchanged(self, value: Any, back: Any) -> bool:
        """Return whether the parts of a value are those of the decoded one, though keys may be in another order."""
        try:
            given, found = self._find_unusual(value), self._find_unusual(back)
        except _BAD:
            return False
        for part in given:
            at = next((at for at, other in enumerate(found) if unchanged(other, part)), None)
            if at is None:
                return False
            del found[at]
        return not found

    def _find_unusual(self, value: Any) -> list[Any]:
        return [part for part in self._find([value]) if not consist_of(self._builtins, [part])]


def _compile(tp: inspect.Type, of_model: Callable[[Any], _Find]) -> _Find | None:
    """Return the function that finds the undeclared parts; None if there are none."""
    return _Compiler(of_model).find(tp) if _has_undeclared(tp) else None


class _Compiler:
    """The functions of one type and of the types within it, which may be recursive."""

    def __init__(self, of_model: Callable[[Any], _Find]) -> None:
        self._of_model = of_model
        self._found: dict[int, _Find] = {}

    def find(self, tp: inspect.Type) -> _Find:
        if id(tp) not in self._found:
            made: list[_Find] = []
            self._found[id(tp)] = lambda values: made[0](values) if values else []
            made.append(self._build(tp))
        return self._found[id(tp)]

    def _build(self, tp: inspect.Type) -> _Find:
        match tp:
            case inspect.Metadata():
                return self.find(tp.type)
            case inspect.StructType() | inspect.DataclassType() | inspect.NamedTupleType():
                return _find_in_each(
                    [(attrgetter(f.name), self.find(f.type)) for f in tp.fields if _has_undeclared(f.type)]
                )
            case inspect.TypedDictType():
                fields = [(f.name, self.find(f.type)) for f in tp.fields if _has_undeclared(f.type)]
                return lambda values: [
                    *chain.from_iterable(find([v[n] for v in values if n in v]) for n, find in fields)
                ]
            case inspect.DictType():
                return self._build_dict(tp)
            case inspect.TupleType():
                items = [
                    (number, self.find(item)) for number, item in enumerate(tp.item_types) if _has_undeclared(item)
                ]
                return lambda values: [*chain.from_iterable(find([v[n] for v in values]) for n, find in items)]
            case inspect.CollectionType():
                item = self.find(tp.item_type)
                return lambda values: item([*chain.from_iterable(values)])
            case inspect.UnionType() if not any(isinstance(part, inspect.AnyType) for part in tp.types):
                return self._build_union(tp)
            case inspect.CustomType():
                return self._of_model(tp.cls)
        return _return_all

    def _build_dict(self, tp: inspect.DictType) -> _Find:
        keys, values = (
            self.find(part) if _has_undeclared(part) else _return_none for part in (tp.key_type, tp.value_type)
        )

        def find(dicts: list[Any]) -> list[Any]:
            of_values = values([*chain.from_iterable(map(dict.values, dicts))])
            return [*keys([*chain.from_iterable(dicts)]), *of_values]

        return find

    def _build_union(self, tp: inspect.UnionType) -> _Find:
        """A value of a union belongs to the one type within it that has its class."""
        parts = [(_class_of(part), self.find(part)) for part in tp.types if _has_undeclared(part)]
        return lambda values: [
            *chain.from_iterable(find([each for each in values if isinstance(each, cls)]) for cls, find in parts)
        ]


def _return_all(values: list[Any]) -> list[Any]:
    return values


def _return_none(values: list[Any]) -> list[Any]:
    return []


def _find_in_each(fields: list[tuple[Callable[[Any], Any], _Find]]) -> _Find:
    if len(fields) == 1:
        ((get, find),) = fields
        return lambda values: find([*map(get, values)])
    return lambda values: [*chain.from_iterable(find([*map(get, values)]) for get, find in fields)]


def _find_in_model(fields: list[str], models: list[Any]) -> list[Any]:
    extras = [each.__pydantic_extra__ for each in models]
    return [
        *(vars(model)[name] for name in fields for model in models),
        *chain.from_iterable(extra.values() for extra in extras if extra),
    ]


def _undeclared_fields(model: Any) -> list[str]:
    """Return the names of a model's fields that may hold undeclared parts, as far as its compiled schema tells."""
    written = [name for name, field in model.model_fields.items() if not field.exclude]
    schema = model.__pydantic_core_schema__
    inner = schema["schema"] if isinstance(schema, dict) and schema["type"] == "model" else {}
    if inner.get("type") == "model-fields":
        return [name for name in written if _holds_any(inner["fields"][name])]
    return written if _holds_any(schema) else []


def _holds_any(schema: Any) -> bool:
    """Return whether a schema of pydantic may stand for values of any type: itself, or a part of it."""
    if isinstance(schema, list | tuple):
        return any(map(_holds_any, schema))
    if not isinstance(schema, dict):
        return False
    if schema.get("type") in ("any", "definition-ref") or schema.get("extra_fields_behavior") == "allow":
        return True
    return any(
        _holds_any(part) for name, part in schema.items() if name not in ("metadata", "serialization", "default")
    )


def _has_undeclared(tp: inspect.Type) -> bool:
    return any(isinstance(part, inspect.AnyType) or _is_open_model(part) for part in iterate_parts(tp))


def _is_open_model(tp: inspect.Type) -> bool:
    cls: Any = getattr(tp, "cls", None)
    return is_model(cls) and _holds_any(cls.__pydantic_core_schema__)


def _class_of(tp: inspect.Type) -> Any:
    """Return the class of values by which a type is found in a union."""
    match tp:
        case inspect.Metadata():
            return _class_of(tp.type)
        case inspect.DictType() | inspect.TypedDictType():
            return dict
        case inspect.TupleType() | inspect.CollectionType():
            return (list, tuple, set, frozenset)
    return tp.cls  # type: ignore[attr-defined]
