"""A plain model is not encoded for a check only if every codec can hold its values, and writes them the same way."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    RootModel,
    computed_field,
    field_serializer,
    model_validator,
)

from kafka_eos.codecs import AvroCodec, JsonCodec, exchange_codec
from kafka_eos.codecs.plain_models import PlainModel
from kafka_eos.codecs.row_list_codecs import PerValueListCodec
from tests.examples import examples


class Place(BaseModel):
    x: int


class Port(BaseModel):
    name: str | None


class Line(BaseModel):
    sku: str
    at: list[list[Place]] = []


class Payment(BaseModel):
    text: str
    number: int
    share: float
    on: bool = True
    note: str | None = Field(default=None, description="of the customer")
    tags: list[str | None] = []
    lines: list[Line] = []
    ship: Port | None = None


class Extended(Payment):
    """A subclass with a field that a codec of Payment does not know."""

    more: int = 0


def payment(**fields: Any) -> Payment:
    usual = {"text": "a", "number": 1, "share": 0.5, "on": True, "note": None, "tags": [], "lines": [], "ship": None}
    return Payment.model_construct(**{**usual, **fields})


cells = st.one_of(
    st.text(max_size=4),
    st.text(st.characters(), max_size=2),
    st.integers(),
    st.sampled_from([2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**4299]),
    st.floats(),
    st.floats(-1e17, 1e17),
    st.booleans(),
    st.none(),
    st.binary(max_size=2),
)
places = st.builds(Place.model_construct, x=st.integers(0, 9) | cells)
lines = st.builds(
    Line.model_construct,
    sku=st.text(max_size=2) | cells,
    at=st.lists(st.lists(places, max_size=2) | st.tuples(places), max_size=2),
)
payments = st.builds(
    payment,
    text=st.text() | cells,
    number=st.integers(-(2**64), 2**65) | cells,
    share=st.floats() | cells,
    on=st.booleans() | cells,
    note=st.none() | cells,
    tags=st.lists(st.text(max_size=2) | cells, max_size=2),
    lines=st.lists(lines | cells, max_size=2),
    ship=st.builds(Port.model_construct, name=st.text(max_size=2) | cells) | lines | cells,
)
plain_payments = st.builds(
    payment,
    text=st.text(),
    number=st.integers(-(2**63), 2**63 - 1),
    share=st.floats(-1e15, 1e15),
    tags=st.lists(st.none() | st.text(max_size=2), max_size=2),
    lines=st.lists(st.builds(Line, sku=st.text(max_size=2)), max_size=2),
)
JSON, EXCHANGE = JsonCodec[Payment](Payment), exchange_codec(Payment)


def attempt(fn: Callable[[], Any]) -> Any:
    """Return the result, or the class of the error."""
    try:
        return fn()
    except Exception as error:  # noqa: BLE001 - both ways must raise the same class
        return type(error)


@examples(300)
@given(st.lists(plain_payments, max_size=3) | st.lists(payments, max_size=2))
@example([payment(share=1e16)])
@example([payment(share=math.nan)])
@example([payment(number=10**4299)])
@example([payment(text="\ud800")])
@example([payment(text=b"a")])
@example([Extended(text="a", number=1, share=0.5)])
def test_what_is_written_and_what_crosses_is_the_same_at_once_as_one_by_one(values: list[Payment]) -> None:
    written = JSON.encode_batch(values)

    if written is not None:
        assert [JSON.encode(value) for value in values] == written
    crosses = attempt(lambda: EXCHANGE.expect_encodable(values))
    assert isinstance(attempt(lambda: EXCHANGE.encode(values)), bytes) == (crosses is None)


def test_the_fields_of_plain_values_are_taken_as_they_are() -> None:
    """Texts, numbers and bools, of their own class each, also in lists and models."""
    bought = Line(sku="é", at=[[], [Place(x=1)]])
    values = [payment(text=f"é\n{number}", number=number, note="" if number else None) for number in range(3)]
    values += [payment(tags=["a", None], lines=[bought], ship=Port(name=None))]

    found = PlainModel.of(Payment)
    assert found is not None
    assert found.dump(values) == [vars(value) for value in values]
    assert JSON.encode_batch(values) == [JSON.encode(value) for value in values]


class _Unencodable(AvroCodec[Any]):
    def encode(self, value: Any) -> bytes:
        raise AssertionError("it was encoded to see whether it can be")


def test_plain_values_that_stay_are_not_encoded() -> None:
    PerValueListCodec(_Unencodable(Payment)).expect_encodable([payment()])


def one(**kind: Any) -> type[BaseModel]:
    """Return a model with a field of a type, and a default if it is a pair."""
    return type("One", (BaseModel,), {"__annotations__": kind})


class Lax(BaseModel, extra="allow"):
    a: int


class Stripped(BaseModel):
    model_config = ConfigDict(str_strip_whitespace=True)
    a: str


class Secret(BaseModel):
    a: int
    _b: int = PrivateAttr(1)


class Doubled(BaseModel):
    a: int

    @computed_field  # type: ignore[prop-decorator]
    @property
    def twice(self) -> int:
        return 2 * self.a


class Started(BaseModel):
    a: int

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)


class Written(BaseModel):
    a: int

    @field_serializer("a")
    def write(self, a: int) -> str:
        return str(a)


class Checked(BaseModel):
    a: int

    @model_validator(mode="after")
    def expect_even(self) -> Checked:
        return self


@pytest.mark.parametrize(
    "tp",
    [
        *(int, Lax, Stripped, Secret, Doubled, Started, Written, Checked, RootModel[int], BaseModel),
        one(a=Annotated[int, Field(gt=1)]),
        one(a=Annotated[int, Field(alias="b")]),
        one(a=Annotated[int, Field(exclude=True)]),
        one(a=Annotated[int, Field(strict=True)]),
        one(a=Annotated[int, BeforeValidator(abs)]),
        one(a=int | str),
        one(a=Annotated[list[int], Field(max_length=2)]),
        one(a=tuple[int, ...]),
        one(a=dict[str, int]),
        one(a=list[Checked]),
        one(a=Place, b=Place),  # the schema has a reference
        one(a=Any),
    ],
    ids=str,
)
def test_a_model_with_anything_else_is_not_plain(tp: Any) -> None:
    assert PlainModel.of(tp) is None
