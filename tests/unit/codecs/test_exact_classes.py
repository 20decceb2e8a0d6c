"""Values that are not decoded for a check, because of their classes, come back unchanged; all others are compared."""

from __future__ import annotations

import datetime
import enum
import math
import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Annotated, Any, Generic, NamedTuple, TypedDict, TypeVar

import msgspec
import pydantic
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs import (
    CountedCodec,
    JsonCodec,
    KeyCodec,
    MsgpackCodec,
    exchange_codec,
    json_codec,
    row_list_codecs,
)
from kafka_eos.codecs.exact_classes import find_json_check, find_msgpack_check
from kafka_eos.codecs.returned_values import unchanged
from tests.examples import examples

T = TypeVar("T")


class Place(msgspec.Struct):
    x: int
    name: str | None = None


class Order(msgspec.Struct, rename="camel", tag="order"):
    text: str = ""
    number: int = 0
    share: float = 0.0
    is_paid: bool = False
    raw: bytes = b""
    note: float | None = None
    tags: list[str | None] = []
    at: list[list[Place]] = []
    ship: Place | None = None


class Special(Order):
    """A subclass that adds nothing, but does not come back as itself."""


class Text(str):
    __slots__ = ()


class Number(int):
    pass


class Level(enum.IntEnum):
    HIGH = 1


class Colour(enum.StrEnum):
    RED = "red"


NOON = datetime.datetime(2026, 3, 31, 12, tzinfo=datetime.timezone(datetime.timedelta(hours=2)))
cells = st.one_of(
    st.text(st.characters(), max_size=2),
    st.integers(),
    st.sampled_from([2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**4300]),
    st.floats(),
    st.sampled_from([-0.0, math.nan, math.inf, 1e16, 1e23, 5e-324]),
    st.booleans(),
    st.none(),
    st.binary(max_size=2),
    st.sampled_from(
        [Text("a"), Number(1), Level.HIGH, Colour.RED, Decimal("1.0"), NOON, NOON.date(), uuid.UUID(int=1)]
    ),
    st.sampled_from([bytearray(b"a"), (), ("a",), {"a"}, {}, {"x": 1}, ["a"], [()], object(), Special(), Order()]),
)
places = st.builds(Place, st.integers(0, 9) | cells, st.text(max_size=2) | cells)
orders = st.builds(
    Order,
    st.text() | cells,
    st.integers(-(2**64), 2**65) | cells,
    st.floats() | cells,
    st.booleans() | cells,
    st.binary() | cells,
    st.none() | st.floats() | cells,
    st.lists(st.text(max_size=2) | cells, max_size=2) | cells,
    st.lists(st.lists(places, max_size=2) | st.tuples(places), max_size=2) | cells,
    places | cells,
)
fields = ("text", "number", "share", "is_paid", "raw", "note", "tags", "at", "ship")
one_odd_field = st.builds(lambda name, cell: [Order(), Order(**{name: cell})], st.sampled_from(fields), cells)
batches = st.lists(orders, max_size=3) | one_odd_field | st.lists(st.builds(Special) | orders, max_size=2)

EXCHANGE, JSON = exchange_codec(Order), JsonCodec[Order](Order)
with pytest.MonkeyPatch.context() as patch:
    patch.setattr(row_list_codecs, "find_msgpack_check", lambda tp: None)
    patch.setattr(json_codec, "find_json_check", lambda tp: None)
    COMPARING_EXCHANGE, COMPARING_JSON = exchange_codec(Order), JsonCodec[Order](Order)


def attempt(fn: Callable[[], T]) -> T | str:
    """Return the result, or the error."""
    try:
        return fn()
    except ValueError as error:
        return str(error)


@examples(150)
@given(batches)
@example([Order(ship=Place(1, "é")), Order(tags=["a", None], at=[[], [Place(2**64 - 1)]], note=-0.0)])
@example([Order(number=True)])
@example([Order(share=1)])
@example([Order(text=Colour.RED)])
@example([Order(tags=("a",))])  # type: ignore[arg-type]
@example([Order(share=math.nan)])
@example([Order(ship=Place(2**64))])
@example([Order(text="\ud800")])
def test_a_batch_is_accepted_as_if_it_were_decoded_and_compared(values: list[Order]) -> None:
    assert attempt(lambda: EXCHANGE.encode(values)) == attempt(lambda: COMPARING_EXCHANGE.encode(values))
    written = JSON.encode_batch(values)
    compared = COMPARING_JSON.encode_batch(values)
    assert written == compared or (compared is None and written == [COMPARING_JSON.encode(value) for value in values])


@examples(150)
@given(batches)
def test_what_is_not_decoded_comes_back_unchanged(values: list[Order]) -> None:
    msgpack, json = find_msgpack_check(Order), find_json_check(Order)
    assert msgpack is not None
    assert json is not None
    encoded = attempt(lambda: EXCHANGE.encode(values))
    if msgpack(values) and isinstance(encoded, bytes):
        assert unchanged(EXCHANGE.decode(encoded), values)
    lines = JSON.encode_batch(values)
    if json(values) and lines is not None:
        assert unchanged([JSON.decode(line) for line in lines], values)


NUMBERS, NAMES = MsgpackCodec[int](int), MsgpackCodec[str](str)
STORED = MsgpackCodec[Order](Order)
counts = st.integers(0, 2**64 - 1)


@examples(150)
@given(batches, st.lists(cells, max_size=3), st.lists(st.integers(-3, 3) | cells, max_size=3), st.data())
@example([Order(text="\ud800")], ["a", "\ud800"], [2**64], None)
@example([Order(number=True)], [Text("a"), b"a"], [1, True], None)
def test_a_batch_of_stored_values_is_encoded_as_one_by_one(
    values: list[Order], keys: list[Any], numbers: list[Any], data: st.DataObject | None
) -> None:
    def numbered(of: Sequence[Any]) -> list[tuple[int, Any]]:
        return [(5 if data is None else data.draw(counts), value) for value in of]

    columns: list[tuple[Codec[Any], Sequence[Any]]] = [(STORED, values), (NUMBERS, numbers), (NAMES, keys)]
    columns += [(CountedCodec(codec), numbered(column)) for codec, column in columns]
    for codec, column in [*columns, (KeyCodec(), keys)]:
        encoded = codec.encode_batch(column)
        assert encoded is None or encoded == [codec.encode(value) for value in column]


@pytest.mark.parametrize(
    ("codec", "values"),
    [
        (STORED, [Order(), Order("é", 1, 0.5)]),
        (NUMBERS, [1, -(2**63)]),
        (CountedCodec(NAMES), [(1, "a"), (2**64 - 1, "é")]),
        (KeyCodec(), ["a", 1, b"a", ("a", 1)]),
    ],
)
def test_stored_values_of_declared_classes_are_encoded_as_a_batch(codec: Codec[Any], values: list[Any]) -> None:
    encoded = codec.encode_batch(values)

    assert encoded is not None
    assert [codec.decode(data) for data in encoded] == values


def test_values_of_declared_classes_are_not_decoded() -> None:
    values = [Order("é", 1, 0.5, True, b"a", None, ["a", None], [[Place(1)]], Place(2, "b")), Order()]

    for find in (find_msgpack_check, find_json_check):
        check = find(Order)
        assert check is not None
        assert check(values)
        assert not check([*values, Special()])


def test_a_field_that_was_deleted_is_not_exact() -> None:
    order = Order()
    del order.text
    check = find_msgpack_check(Order)
    assert check is not None
    assert not check([order])


class Bounded(msgspec.Struct):
    x: Annotated[int, msgspec.Meta(ge=0)]


class Sparse(msgspec.Struct, omit_defaults=True):
    x: float = 0.0


class Counted(msgspec.Struct):
    x: int

    def __post_init__(self) -> None:
        self.x += 1


class Doubled(msgspec.Struct):
    x: int

    def __getattribute__(self, name: str) -> Any:
        return 1


class Shadowing(Place):
    @property  # type: ignore[misc]
    def x(self) -> int:  # type: ignore[override]
        return 1


class Recursive(msgspec.Struct):
    inner: Recursive | None = None


class Box(msgspec.Struct, Generic[T]):
    x: T


class Pair(NamedTuple):
    x: int


class Row(TypedDict):
    x: int


class Model(pydantic.BaseModel):
    x: int


@pytest.mark.parametrize(
    "tp",
    [
        *(Any, object, Bounded, Sparse, Counted, Doubled, Shadowing, Recursive, Box, Box[int], Pair, Row, Model),
        *(int | float, int | str | None, dict[str, int], list, list[Any], tuple[int, ...], set[int], bytearray),
        Annotated[float, msgspec.Meta(gt=0)],
        *(Annotated[list[int], msgspec.Meta(max_length=1)], Annotated[str, msgspec.Meta(pattern="a")]),
        *(datetime.datetime, datetime.date, Decimal, uuid.UUID, Level, Colour, Place | int, list[Sparse | None]),
    ],
    ids=str,
)
@pytest.mark.parametrize("find", [find_msgpack_check, find_json_check])
def test_a_declaration_of_more_than_classes_has_no_check(find: Callable[[Any], object], tp: Any) -> None:
    assert find(tp) is None


@pytest.mark.parametrize(
    ("tp", "good", "bad"),
    [
        (int, [1, -1], True),
        (float, [0.5, -0.0], 1),
        (str, ["", "é"], Colour.RED),
        (bool, [True], 1),
        (bytes, [b""], bytearray()),
        (int | None, [None, 1], False),
        (None | int, [None, 1], False),
        (list[int], [[], [1]], [True]),
        (list[Place | None], [[Place(1), None]], [Place(1), Place(None)]),  # type: ignore[arg-type]
    ],
    ids=str,
)
def test_each_class_is_checked(tp: Any, good: Sequence[Any], bad: object) -> None:
    for find in (find_msgpack_check, find_json_check):
        check = find(tp)
        assert check is not None
        assert check(good)
        assert not check([*good, bad])


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_only_messagepack_has_numbers_that_are_not_finite(number: float) -> None:
    in_msgpack, in_json = find_msgpack_check(float), find_json_check(float)
    assert in_msgpack is not None
    assert in_json is not None
    assert in_msgpack([number])
    assert not in_json([0.5, number])
