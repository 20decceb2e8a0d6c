"""Inspection of user types for all codecs."""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Any, Final, TypeGuard

import msgspec
import pydantic
from msgspec import inspect

from kafka_eos.abc.codec import Codec
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json

_LONGEST_REASON: Final = 2_000
"""Characters of an error that are shown."""
_HOLDERS: Final = (
    inspect.CollectionType, inspect.TupleType, inspect.DictType, inspect.TypedDictType, inspect.NamedTupleType,
    inspect.StructType, inspect.DataclassType,
)  # fmt: skip
"""Types in msgspec's words whose values hold other values."""


def is_model(tp: object) -> bool:
    """Return whether it is a pydantic model class."""
    return isinstance(tp, type) and issubclass(tp, pydantic.BaseModel)


def is_message(tp: object) -> bool:
    """Return whether Protobuf has generated the class from a message. Works without Protobuf installed."""
    return isinstance(tp, type) and hasattr(tp, "DESCRIPTOR") and hasattr(tp, "FromString")


def is_codec(tp: object) -> TypeGuard[Codec[Any]]:
    """Return whether it is a codec, which is accepted in place of a type."""
    return isinstance(tp, Codec)


def expect_type(tp: object) -> None:
    """Raise PlanError if ``tp`` is not a type and was meant as a codec: a codec class, or an object that looks like
    one."""
    if isinstance(tp, type):
        if issubclass(tp, Codec):
            raise PlanError(f"{tp.__name__} is a codec class, not a codec: pass an object, {tp.__name__}(...)")
    elif callable(getattr(tp, "encode", None)) and callable(getattr(tp, "decode", None)):
        raise PlanError(
            f"{type(tp).__name__} has encode and decode but does not inherit Codec, so it is not a codec: derive "
            "its class from kafka_eos.abc.Codec, and define its name"
        )


def type_name(tp: object) -> str:
    """Return the name of a type for messages."""
    return tp.__name__ if isinstance(tp, type) else str(tp)


def get_instance_class(tp: object) -> type | None:
    """Return the class to check values with isinstance; None if there is none."""
    return tp if is_model(tp) or is_record(tp) or is_message(tp) else None  # type: ignore[return-value]


def is_record(tp: object) -> bool:
    """Return whether it is a msgspec Struct or a dataclass."""
    return isinstance(tp, type) and (issubclass(tp, msgspec.Struct) or hasattr(tp, "__dataclass_fields__"))


@lru_cache(maxsize=1000)
def field_names(cls: Any) -> list[str]:
    """Return the names of the fields of a Struct, a dataclass or an attrs class; none for other classes."""
    names = [*getattr(cls, "__struct_fields__", ()), *getattr(cls, "__dataclass_fields__", ())]
    return names + [attribute.name for attribute in getattr(cls, "__attrs_attrs__", ())]


def field_aliases(tp: Any) -> dict[str, str]:
    """Return the names under which fields are read from JSON, by the names of the fields, where they differ.

    Raises PlanError if one is the name of another field: columns may have either name.
    """
    if is_model(tp):
        named = {name: field.validation_alias for name, field in tp.model_fields.items()}
    elif isinstance(tp, type) and issubclass(tp, msgspec.Struct):
        named = dict(zip(tp.__struct_fields__, tp.__struct_encode_fields__, strict=True))
    else:
        return {}
    aliases = {name: alias for name, alias in named.items() if isinstance(alias, str) and alias != name}
    if twice := aliases.keys() & aliases.values():
        raise PlanError(
            f"{type_name(tp)}: {', '.join(sorted(twice))} is the name of one field and the alias of another, so a "
            "column of that name could be either: give one of them another name"
        )
    return aliases


def attributes(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns these attributes of a value as a tuple, without a loop in Python."""
    if len(names) == 1:  # for one name, attrgetter returns no tuple
        (name,) = names
        return lambda value: (getattr(value, name),)
    return attrgetter(*names)


def derive_json_schema(tp: Any) -> Json:
    """Return the JSON schema of a type; ``json_schema()`` is the function for users."""
    schema: Json = tp.model_json_schema() if is_model(tp) else msgspec.json.schema(tp, schema_hook=_schema_hook)
    return schema


def _schema_hook(tp: type) -> dict[str, Any]:
    if is_model(tp):
        # The id makes its references point into itself, not into the schema around it.
        return {"$id": f"{tp.__qualname__}.json", **tp.model_json_schema()}  # type: ignore[attr-defined]
    raise NotImplementedError


def expect_known(tp: Any, how: str) -> None:
    """Raise PlanError if a type does not declare its contents, such as a class without annotations."""
    try:
        msgspec.json.schema(tp, schema_hook=_known)
    except TypeError as error:
        raise PlanError(
            f"values of type {type_name(tp)} cannot be {how}: declare their contents with a "
            "pydantic model, a Struct, a dataclass, numbers, text, or lists and dicts of these; "
            "or pass a codec"
        ) from error


def _known(tp: type) -> dict[str, Any]:
    if is_model(tp):
        return {"type": "object"}
    raise NotImplementedError


def to_plain(value: object) -> object:
    """Convert a pydantic model inside another type: a hook for msgspec."""
    if isinstance(value, pydantic.BaseModel):
        return value.__pydantic_serializer__.to_python(value, mode="json", by_alias=True, warnings=False)
    raise NotImplementedError(f"values of type {type(value).__name__} cannot be encoded")


def from_plain(tp: type, value: object) -> object:
    """Convert back from ``to_plain``: a hook for msgspec."""
    if is_model(tp):
        return tp.model_validate(value)  # type: ignore[attr-defined]
    raise NotImplementedError(f"values of type {type_name(tp)} cannot be decoded")


def reason(error: Exception) -> str:
    """Return an error as one readable line."""
    if isinstance(error, pydantic.ValidationError):
        details = error.errors(include_url=False, include_context=False, include_input=False)
        return "; ".join(f"{'.'.join(map(str, d['loc'])) or 'value'}: {d['msg']}" for d in details[:5])
    return in_short(" ".join(str(error).split())) or type(error).__name__


def in_short(text: str) -> str:
    """Return a text that fits into a line: a schema of others may have megabytes of names, which errors quote."""
    return text if len(text) <= _LONGEST_REASON else f"{text[:_LONGEST_REASON]}…"


def get_return_type(fn: object) -> Any:
    """Return the annotated return type of a function; None if it has none."""
    try:
        found = typing.get_type_hints(fn).get("return")
    except (TypeError, NameError):
        return None  # a function without annotations, or with names that only a type checker knows
    return None if isinstance(found, typing.TypeVar) else found


def known_type(tp: Any) -> Any:
    """Return the type of values that a type or a codec declares; None if it declares none, or any."""
    declared = tp.type if is_codec(tp) else tp
    return None if declared is Any or declared is object else declared


def can_be(tp: Any, expected: Any) -> bool:
    """Return whether a value of type ``tp`` can be of type ``expected``, as far as their classes tell.

    Of generic types only the classes are compared, and an unknown type, None, can be any.
    """
    pairs = [(one, other) for one in _classes(tp) for other in _classes(expected)]
    return not pairs or any(_overlap(one, other) for one, other in pairs)


def _overlap(one: type, other: type) -> bool:
    try:
        return issubclass(one, other) or issubclass(other, one) or (issubclass(one, int) and other is float)
    except TypeError:
        return True  # a protocol that cannot be checked at run time


def _classes(tp: Any) -> list[type]:
    """Return the classes of which a value of a type can be; none if they are unknown."""
    origin, parts = typing.get_origin(tp), typing.get_args(tp)
    if origin is typing.Annotated:
        return _classes(parts[0])
    if origin is typing.Literal:
        return [type(value) for value in parts]
    if origin in (typing.Union, types.UnionType):
        found = [_classes(part) for part in parts]
        return [each for classes in found for each in classes] if all(found) else []
    if isinstance(tp, typing.NewType):
        return _classes(tp.__supertype__)
    if typing.is_typeddict(tp):
        return [dict]
    cls = tp if origin is None else origin
    return [cls] if isinstance(cls, type) and cls is not object and cls is not Any else []


def get_element_type(tp: Any) -> Any:
    """Return the element type of an iterable type; None if unknown."""
    origin, parts = typing.get_origin(tp), typing.get_args(tp)
    iterable = isinstance(origin, type) and issubclass(origin, collections.abc.Iterable)
    return parts[0] if iterable and parts and origin is not tuple else None


def without_none(tp: Any) -> Any:
    """Return the type without None: ``X`` for ``X | None``."""
    parts = typing.get_args(tp) if typing.get_origin(tp) in (typing.Union, types.UnionType) else ()
    others = [part for part in parts if part is not type(None)]
    return typing.Union[tuple(others)] if others else tp  # noqa: UP007 (as many as there are)


def holds_values(tp: Any) -> bool:
    """Return whether each value of a type, other than None, holds others: a list, a dict or a record, never a text."""
    try:
        found = inspect.type_info(tp)
    except TypeError:
        return False
    parts = found.types if isinstance(found, inspect.UnionType) else (found,)
    parts = tuple(part for part in parts if not isinstance(part, inspect.NoneType))
    return bool(parts) and all(isinstance(p, _HOLDERS) or is_model(getattr(p, "cls", None)) for p in parts)


def dict_without_text_keys(tp: Any) -> str | None:
    """Return the first dict in ``tp``, in msgspec's words, with keys of another type than str; None if there is
    none."""
    return next(
        (
            f"dict[{_plain_name(part.key_type)}, …]"
            for part in iterate_parts(inspect.type_info(tp))
            if isinstance(part, inspect.DictType) and not _may_be_text(part.key_type)
        ),
        None,
    )


def any_part(tp: Any, holds: Callable[[inspect.Type], bool]) -> bool:
    """Return whether a condition is true for a type or a type within it."""
    return any(map(holds, iterate_parts(inspect.type_info(tp))))


def iterate_parts(tp: inspect.Type) -> Iterator[inspect.Type]:
    """Yield a type and all types within it, in order, in msgspec's words."""
    seen: set[int] = set()
    waiting: list[Any] = [tp]
    while waiting:
        part = waiting.pop()
        if isinstance(part, tuple):
            waiting.extend(reversed(part))
        elif isinstance(part, inspect.Type | inspect.Field) and id(part) not in seen:
            seen.add(id(part))  # a type may be recursive
            if isinstance(part, inspect.Type):
                yield part
            waiting.extend(getattr(part, name) for name in reversed(part.__struct_fields__))


def _may_be_text(tp: inspect.Type) -> bool:
    match tp:
        case inspect.LiteralType(values=values):
            return any(isinstance(value, str) for value in values)
        case inspect.EnumType(cls=cls):
            return issubclass(cls, str)
        case inspect.UnionType(types=types):
            return any(map(_may_be_text, types))
    return isinstance(tp, inspect.StrType | inspect.AnyType)


def _plain_name(tp: inspect.Type) -> str:
    return type(tp).__name__.removesuffix("Type").lower()
