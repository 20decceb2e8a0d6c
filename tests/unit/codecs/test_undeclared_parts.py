"""A part without a declared type comes back equal and of its class, or its row is rejected, wherever it is."""

from __future__ import annotations

import dataclasses
import datetime
import decimal
import enum
import uuid
from collections import Counter, OrderedDict, UserList
from collections.abc import Sequence
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from kafka_eos.codecs import JsonCodec, exchange_codec, state_codec
from kafka_eos.codecs.returned_values import consist_of
from kafka_eos.codecs.undeclared_parts import UndeclaredParts
from tests.examples import examples

T = TypeVar("T")


class Item(msgspec.Struct):
    amount: int


class Kind(enum.StrEnum):
    PAID = "paid"


class Level(enum.IntEnum):
    HIGH = 1


@dataclasses.dataclass
class Data:
    amount: int


class Model(BaseModel):
    amount: int


class Named(NamedTuple):
    amount: int


class Open(msgspec.Struct):
    id: int
    more: Any


class Tagged(msgspec.Struct, tag=True):
    more: Any


class Of(msgspec.Struct, Generic[T]):
    more: T


class Tree(msgspec.Struct):
    more: Any = None
    below: list[Tree] = []


class Positioned(msgspec.Struct, array_like=True):
    more: Any


@dataclasses.dataclass
class OpenData:
    more: Any


class OpenDict(TypedDict, total=False):
    more: Any


class OpenTuple(NamedTuple):
    id: int
    more: Any


class OpenModel(BaseModel):
    more: Any


class Extra(BaseModel):
    model_config = ConfigDict(extra="allow")


class Linked(BaseModel):
    more: Any = None
    after: Linked | None = None


class Closed(msgspec.Struct):
    id: int
    kind: Kind
    items: list[Item]
    model: Model
    at: datetime.datetime


SAID = "would|cannot|could not|not JSON|Unable to serialize"
PLACES: dict[str, tuple[Any, Any]] = {
    "field": (Open, lambda part: Open(1, part)),
    "field of a list": (list[Open], lambda part: [Open(1, 0), Open(2, part)]),
    "field in a tuple": (tuple[int, Open], lambda part: (1, Open(1, part))),
    "union": (Tagged | int | None, Tagged),
    "union with Any": (int | Any, lambda part: part),
    "generic": (Of, Of),
    "generic of Any": (Of[dict[str, Any]], lambda part: Of({"a": 1, "b": part})),
    "tree": (Tree, lambda part: Tree(0, [Tree(), Tree(1, [Tree(part)])])),
    "array-like": (Positioned, Positioned),
    "dataclass": (OpenData, OpenData),
    "TypedDict": (OpenDict, lambda part: {"more": part}),
    "NamedTuple": (OpenTuple, lambda part: OpenTuple(1, part)),
    "value of a dict": (dict[str, Any], lambda part: {"b": 0, "a": part}),
    "bare dict": (dict, lambda part: {"b": 0, "a": part}),
    "bare list": (list, lambda part: [0, part]),
    "sequence": (Sequence[Any], lambda part: [0, part]),
    "annotated": (list[Annotated[Any, "x"]], lambda part: [part]),
    "model in a list": (list[OpenModel], lambda part: [OpenModel(more=part)]),
    "more fields of a model": (list[Extra], lambda part: [Extra(more=part)]),
    "recursive model": (list[Linked], lambda part: [Linked(after=Linked(more=part))]),
}
CHANGED = [
    Item(1), Kind.PAID, Level.HIGH, Data(1), Model(amount=1), Named(1), {1}, frozenset((1,)), (1,), OrderedDict(a=1),
    Counter("a"), bytearray(b"x"), decimal.Decimal(1), uuid.UUID(int=0), datetime.date(2026, 1, 1), UserList([1]),
]  # fmt: skip


@pytest.mark.parametrize("part", CHANGED, ids=lambda part: type(part).__name__)
@pytest.mark.parametrize("place", PLACES)
def test_a_part_that_would_come_back_as_another_value_is_rejected(place: str, part: Any) -> None:
    tp, around = PLACES[place]
    for each in (part, [0, part], {"a": part}):
        value = around(each)
        for codec, given_to in ((state_codec(tp), value), (exchange_codec(tp), [value]), (JsonCodec[Any](tp), value)):
            with pytest.raises(ValueError, match=SAID):
                codec.encode(given_to)


PLAIN = [None, True, 1, 1.5, "a", [1, [2]], {"b": [1], "a": {}}]


@pytest.mark.parametrize("place", PLACES)
def test_a_part_of_builtins_comes_back(place: str) -> None:
    tp, around = PLACES[place]
    for part in PLAIN:
        value = around(part)
        for codec, given_to in ((state_codec(tp), value), (exchange_codec(tp), [value]), (JsonCodec[Any](tp), value)):
            assert codec.decode(codec.encode(given_to)) == given_to


@pytest.mark.parametrize("place", ["field", "tree", "value of a dict", "TypedDict"])
def test_a_time_in_utc_comes_back_as_such_a_part(place: str) -> None:
    tp, around = PLACES[place]
    value = around([datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC), b"x"])

    assert state_codec(tp).decode(state_codec(tp).encode(value)) == value
    assert exchange_codec(tp).decode(exchange_codec(tp).encode([value, value])) == [value, value]


class Defaults(msgspec.Struct, omit_defaults=True):
    more: Any = ()
    given: Any | msgspec.UnsetType = msgspec.UNSET


def test_a_default_that_is_not_written_comes_back() -> None:
    codec = state_codec(Defaults)

    assert codec.decode(codec.encode(Defaults())) == Defaults()
    with pytest.raises(ValueError, match="would come back"):
        codec.encode(Defaults(given=()))


@pytest.mark.parametrize(
    "tp", [int, str, Item, Closed, list[Closed], dict[str, Data], Model, tuple[Model, ...]], ids=str
)
def test_types_that_declare_all_that_they_hold_are_not_looked_at(tp: Any) -> None:
    assert UndeclaredParts.in_msgpack(tp) is None
    assert UndeclaredParts.in_json(tp) is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=2) | st.sampled_from(CHANGED),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


@examples(60)
@given(st.sampled_from([*PLACES]), ANYTHING)
def test_a_part_is_kept_exactly_if_it_consists_of_builtins(place: str, part: Any) -> None:
    tp, around = PLACES[place]
    codec, values = exchange_codec(tp), [around(part)]

    if consist_of(frozenset((dict, list, str, int, float, bool, type(None))), [part]):
        assert repr(codec.decode(codec.encode(values))) == repr(values)
    else:
        with pytest.raises(ValueError, match=SAID):
            codec.encode(values)
