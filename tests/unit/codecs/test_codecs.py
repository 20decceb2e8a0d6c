"""Codecs give back what they took, and say in one line why they refuse."""

import dataclasses
import datetime
import decimal
import enum
import json
import math
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, Optional, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from kafka_eos import PlanError
from kafka_eos.abc.codec import ListCodec
from kafka_eos.codecs import (
    AvroCodec,
    BytesCodec,
    CountedCodec,
    JsonCodec,
    KeyCodec,
    MsgpackCodec,
    StrCodec,
    codec_for,
    exchange_codec,
    state_codec,
)
from kafka_eos.codecs.returned_values import unchanged
from kafka_eos.codecs.undeclared_parts import UndeclaredParts
from kafka_eos.core.records import RawRecord, RejectedRecord
from tests.examples import examples


class Model(BaseModel):
    user: str
    amount: int = Field(alias="amt", default=0)


class Struct(msgspec.Struct):
    user: str
    amount: int = 0


@dataclasses.dataclass
class Data:
    user: str
    models: list[Model]


class Typed(TypedDict):
    user: str


VALUES: list[tuple[Any, Any]] = [
    (Model, Model(user="a", amt=1)),
    (Struct, Struct("a", 1)),
    (Data, Data("a", [Model(user="b", amt=2)])),
    (Typed, {"user": "a"}),
    (list[Model], [Model(user="a", amt=1)]),
    (dict[str, int], {"a": 1}),
    (int, 2**62),
]
CODECS: list[Any] = [
    make(tp) for make, tp in ((JsonCodec, Model), (JsonCodec, Struct), (AvroCodec, Struct), (MsgpackCodec, Struct))
]
NAMES = [str(tp) for tp, _ in VALUES]


@pytest.mark.parametrize(("tp", "value"), VALUES, ids=NAMES)
def test_json_and_msgpack_give_back_what_they_took(tp: Any, value: Any) -> None:
    for codec in (JsonCodec[Any](tp), MsgpackCodec[Any](tp)):
        assert codec.decode(codec.encode(value)) == value
        json.dumps(codec.schema)


def test_json_of_a_model_keeps_its_aliases() -> None:
    assert JsonCodec[Any](Model).encode(Model(user="a", amt=1)) == b'{"user":"a","amt":1}'


@pytest.mark.parametrize("tp", [Model, Struct, list[Model], dict[str, int]], ids=str)
@pytest.mark.parametrize("data", [b"", b"{", b'{"user":[1]}', b"\xff", b"[" * 100_000, b'"x"'], ids=lambda d: d[:8])
def test_bad_json_is_a_value_error_of_one_line(tp: Any, data: bytes) -> None:
    with pytest.raises(ValueError, match="not a valid") as refused:
        JsonCodec(tp).decode(data)

    assert "\n" not in str(refused.value)


class Larger(Struct):
    more: int = 1


class Open(msgspec.Struct):
    share: float | None
    more: Any = None


class OpenModel(BaseModel):
    share: float | None
    more: Any = None


class Unequal(msgspec.Struct, eq=False):
    share: float


class Priced(msgspec.Struct):
    price: decimal.Decimal


class PricedModel(BaseModel):
    price: Annotated[decimal.Decimal, Field(allow_inf_nan=True)]


class Spelt(BaseModel):
    model_config = ConfigDict(ser_json_inf_nan="strings")
    share: float


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (float, math.nan),
        (float | None, math.inf),
        (list[float | None], [-math.inf]),
        (Open, Open(math.nan)),
        (OpenModel, OpenModel(share=math.nan)),
        (Unequal, Unequal(math.nan)),
        (Any, {"share": [math.nan]}),
        (Any, OpenModel(share=math.inf)),
        (Any, {1: "a", "1": "b"}),
        (dict, {1: "a"}),
        (dict[str | int, str], {1: "a", "1": "b"}),
        (Open, Open(1.0, {1: "a"})),
        (OpenModel, OpenModel(share=1.0, more={1: "a"})),
        (Any, {"raw": [b"x"]}),
        (list, [b"x"]),
        (Open, Open(1.0, b"x")),
        (OpenModel, OpenModel(share=1.0, more=b"x")),
        (Any, b"x"),
        (Any, (1, 2)),
        (Any, {1, 2}),
        (Any, datetime.datetime(2026, 6, 1)),
        (Any, decimal.Decimal("1.5")),
        (Open, Open(1.0, decimal.Decimal("NaN"))),
        (Any, {"who": Struct("a")}),
        (int, True),
        (Struct, Struct("a", "5")),  # type: ignore[arg-type]
        (Typed, {"user": "a", "more": 1}),
        (Struct, Larger("a")),
    ],
    ids=repr,
)
def test_what_json_would_change_is_not_written(tp: Any, value: Any) -> None:
    """NaN would be null, bytes a text, a number as a key a text; and a reader could not tell."""
    with pytest.raises(
        ValueError, match="would come back from JSON as .*: (declare|map)|could not be read back from JSON"
    ):
        JsonCodec(tp).encode(value)


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (bytes, b"x"),
        (dict[int, bytes], {1: b"x"}),
        (float, 5),
        (Open, Open(None, [1, {"a": None}])),
        (OpenModel, OpenModel(share=None, more="null")),
        (Any, {"a": [1, 1.0, True, None, "1", 2**70, -0.0]}),
        (set[int], {1, 2}),
        (Sequence[int], [1, 2]),
        (tuple[datetime.datetime, decimal.Decimal], (datetime.datetime(2026, 6, 1), decimal.Decimal("1.50"))),
    ],
    ids=repr,
)
def test_what_json_holds_by_its_type_comes_back(tp: Any, value: Any) -> None:
    codec: JsonCodec[Any] = JsonCodec(tp)

    assert codec.decode(codec.encode(value)) == value


@pytest.mark.parametrize("digits", ["NaN", "-NaN7", "sNaN", "-Infinity", "-0", "1.50"])
@pytest.mark.parametrize(
    ("tp", "around"),
    [
        (decimal.Decimal, lambda value: value),
        (list[decimal.Decimal], lambda value: [value]),
        (tuple[decimal.Decimal, int], lambda value: (value, 1)),
        (Priced, Priced),
        (PricedModel, lambda value: PricedModel(price=value)),
    ],
    ids=lambda given: given.__name__,
)
def test_a_decimal_that_is_no_number_comes_back_as_it_is(tp: Any, around: Callable[[Any], Any], digits: str) -> None:
    """JSON writes it as text. NaN is not equal to itself, so a plain comparison would reject it."""
    codec: JsonCodec[Any] = JsonCodec(tp)
    value = around(decimal.Decimal(digits))

    assert repr(codec.decode(codec.encode(value))) == repr(value)


def test_a_record_needs_no_type_of_its_sink() -> None:
    """Its class says how it is read, as whoever knows the class does."""
    assert JsonCodec(Any).encode(Data("a", [Model(user="b", amt=2)])) == JsonCodec(Data).encode(
        Data("a", [Model(user="b", amt=2)])
    )


def test_records_are_compared_by_their_fields_if_their_class_does_not_compare_them() -> None:
    assert JsonCodec(Unequal).encode(Unequal(5)) == b'{"share":5}'
    assert JsonCodec(Spelt).encode(Spelt(share=math.nan)) == b'{"share":"NaN"}'


@pytest.mark.parametrize("headers", [(), (("kind", b"paid"), ("none", None))], ids=str)
def test_a_rejected_record_comes_back_with_its_headers(headers: tuple[tuple[str, bytes | None], ...]) -> None:
    letter = RejectedRecord(RawRecord("orders", 3, 17, -1, b"key", None, headers), "total", "ValueError", "no number")

    assert JsonCodec(RejectedRecord).decode(JsonCodec(Any).encode(letter)) == letter


class Holder(msgspec.Struct):
    of: Model


@pytest.mark.filterwarnings("error")
def test_a_field_of_another_class_is_an_error_and_not_also_a_warning_which_would_quote_it() -> None:
    odd = Model.model_construct(user=12345678, amt="x")  # type: ignore[arg-type]

    for codec, value in ((JsonCodec[Any](Model), odd), (JsonCodec[Any](Holder), Holder(odd))):
        with pytest.raises(ValueError, match="from JSON"):
            codec.encode(value)


@pytest.mark.parametrize("codec", CODECS)
def test_a_value_of_another_class_is_not_written(codec: Any) -> None:
    with pytest.raises(ValueError, match="got dict"):
        codec.encode({"user": "a"})


def test_a_topic_codec_follows_from_the_type() -> None:
    own = StrCodec()

    assert [type(codec_for(tp)) for tp in (None, bytes, str, Model)] == [BytesCodec, BytesCodec, StrCodec, JsonCodec]
    assert codec_for(own) is own


def test_a_state_codec_follows_from_the_type() -> None:
    own = StrCodec()

    assert [type(state_codec(tp)) for tp in (Model, Struct, int, None)] == [AvroCodec] + [MsgpackCodec] * 3
    assert state_codec(own) is own


@pytest.mark.parametrize("codec", [BytesCodec(), StrCodec()])
def test_raw_codecs_refuse_other_types(codec: Any) -> None:
    with pytest.raises(ValueError, match="got int"):
        codec.encode(1)


def test_text_that_is_not_utf8_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="utf-8"):
        StrCodec().decode(b"\xff")


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(PLAIN)
def test_undeclared_state_of_plain_values_survives(value: Any) -> None:
    codec: MsgpackCodec[Any] = MsgpackCodec()
    back = codec.decode(codec.encode(value))

    assert codec.encode(back) == codec.encode(value)
    assert type(back) is type(value)


CELLS = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary()
BUILTINS = st.recursive(
    CELLS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(CELLS, inner, max_size=3), max_leaves=10
)


@examples(100)
@given(BUILTINS)
def test_all_of_builtins_that_is_encoded_comes_back_unchanged(value: Any) -> None:
    """Values of builtin classes come back unchanged, so they are not decoded for a comparison."""
    parts = UndeclaredParts.in_msgpack(Any)
    assert parts is not None
    assert parts.are_plain([value])

    pairs: list[tuple[Any, Any]] = [(MsgpackCodec[Any](), value), (exchange_codec(None), [value])]
    for codec, taken in pairs:
        try:
            data = codec.encode(taken)
        except ValueError:
            continue
        assert unchanged(codec.decode(data), taken)


@pytest.mark.parametrize("odd", [(1,), {1}, datetime.datetime(2024, 1, 1), bytearray(b"a"), OrderedDict(a=1), object()])
@pytest.mark.parametrize("within", [lambda odd: odd, lambda odd: [[odd]], lambda odd: [{"a": {}}, {"a": [odd]}]])
def test_no_other_class_is_taken_for_a_builtin(within: Callable[[Any], Any], odd: Any) -> None:
    parts = UndeclaredParts.in_msgpack(Any)

    assert parts is not None
    assert not parts.are_plain([1, within(odd)])


@pytest.mark.parametrize(
    "value",
    [(1,), [(1,)], {"a": {1}}, datetime.datetime(2024, 1, 1), Struct("a"), Model(user="a"), object(), 2**70, 1j],
    ids=lambda value: type(value).__name__,
)
def test_undeclared_state_that_would_change_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="come back as|cannot be stored"):
        MsgpackCodec[Any]().encode(value)


OF_ANOTHER_TYPE: list[tuple[Any, Any]] = [
    (int, "5"),
    (int, True),
    (str, 5),
    (list[int], [1, "2"]),
    (Struct, Struct(user="ann", amount="5")),  # type: ignore[arg-type]
    (Data, Data(5, [])),  # type: ignore[arg-type]
    (dict[str, int], {"a": None}),
]


OF_THE_TYPE: dict[Any, Any] = {
    int: 1, str: "a", list[int]: [1], Struct: Struct("a"), Data: Data("a", []), dict[str, int]: {"a": 1},
}  # fmt: skip


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize(("tp", "value"), OF_ANOTHER_TYPE, ids=repr)
def test_a_row_that_is_not_what_its_type_says_does_not_change_subtasks(tp: Any, value: Any, at: int) -> None:
    """The subtask that receives it could not decode it, wherever it is among other rows."""
    rows = [OF_THE_TYPE[tp]] * 2
    rows.insert(at, value)

    with pytest.raises(ValueError, match="cannot change subtasks as .*: Expected"):
        exchange_codec(tp).encode(rows)


@pytest.mark.parametrize("at", range(3))
@pytest.mark.parametrize("value", ["a", Model(user="a"), {"user": "a", "amount": 1}], ids=repr)
def test_a_row_of_another_class_is_refused_with_the_classes_of_its_batch(value: Any, at: int) -> None:
    """A dict with the same fields would arrive as an object."""
    rows: list[Any] = [Struct("a")] * 2
    rows.insert(at, value)
    classes = ", ".join(sorted(["Struct", type(value).__name__]))

    with pytest.raises(ValueError, match=f"^expected Struct, got {classes}$"):
        exchange_codec(Struct).encode(rows)


@pytest.mark.parametrize(
    ("tp", "value"),
    [(float, 2**53 + 1), (list[float], [2**53 + 1]), (uuid.UUID, "12345678-1234-5678-1234-567812345678")],
    ids=repr,
)
@pytest.mark.parametrize("encode", [lambda tp: state_codec(tp).encode, lambda tp: _encode_row(exchange_codec(tp))])
def test_a_value_that_its_declared_type_changes_is_refused(
    tp: Any, value: Any, encode: Callable[[Any], Callable[[Any], bytes]]
) -> None:
    holder = msgspec.defstruct("Holder", [("held", tp)])

    with pytest.raises(ValueError, match="would .* as .*: it is not of its declared type"):
        encode(holder)(holder(value))


def _encode_row(codec: ListCodec[Any]) -> Callable[[Any], bytes]:
    return lambda value: codec.encode([value])


def test_rows_and_state_with_nan_and_with_integers_for_floats_come_back() -> None:
    holder = msgspec.defstruct("Holder", [("share", float), ("parts", list[int])])
    codec = exchange_codec(holder)

    back = codec.decode(codec.encode([holder(math.nan, []), holder(5, [1])]))

    assert repr(back) == repr([holder(math.nan, []), holder(5.0, [1])])
    assert repr(state_codec(holder).decode(state_codec(holder).encode(holder(math.nan, [])))) == repr(back[0])


@pytest.mark.parametrize(("tp", "value"), OF_ANOTHER_TYPE, ids=repr)
def test_state_that_is_not_what_its_type_says_is_refused_before_it_is_stored(tp: Any, value: Any) -> None:
    """After a restart nobody could read it."""
    with pytest.raises(ValueError, match="could not be read back as .*: Expected"):
        MsgpackCodec[Any](tp).encode(value)


def test_nan_is_a_value_like_others() -> None:
    codec: MsgpackCodec[Any] = MsgpackCodec()

    assert math.isnan(codec.decode(codec.encode({"x": [math.nan]}))["x"][0])


def test_equal_dicts_have_equal_bytes() -> None:
    codec: MsgpackCodec[Any] = MsgpackCodec()

    assert codec.encode({"b": 1, "a": 2}) == codec.encode({"a": 2, "b": 1})


KEYS = st.recursive(
    st.text() | st.binary() | st.integers(-(2**63), 2**63 - 1), lambda inner: st.lists(inner).map(tuple), max_leaves=8
)


@given(KEYS, KEYS)
def test_keys_are_equal_exactly_when_their_bytes_are(one: Any, other: Any) -> None:
    codec = KeyCodec()

    assert codec.decode(codec.encode(one)) == one
    assert (one == other) == (codec.encode(one) == codec.encode(other))


@given(st.integers(0, 2**63), st.text())
def test_a_counted_entry_keeps_number_and_value_together(count: int, text: str) -> None:
    codec = CountedCodec(StrCodec())

    assert codec.decode(codec.encode((count, text))) == (count, text)


def test_a_counted_entry_that_is_too_short_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 8 bytes"):
        CountedCodec(StrCodec()).decode(b"1234567")


def test_a_type_that_msgspec_cannot_map_is_a_plan_error() -> None:
    with pytest.raises(PlanError, match="cannot be mapped to JSON"):
        JsonCodec(dict[str, int] | list[int] | tuple[int, ...])


class Nested(msgspec.Struct):
    inner: Optional["Nested"] = None
    counts: dict[int, int] = {}


@pytest.mark.parametrize("tp", [dict[int, int], list[dict[tuple[str, int], str]], dict[str, dict[bytes, int]], Nested])
def test_a_state_whose_dicts_have_other_keys_than_text_is_a_plan_error(tp: Any) -> None:
    with pytest.raises(PlanError, match="keys of a dict must be str"):
        state_codec(tp)


class Colour(enum.StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("tp", "value"),
    [
        (dict, {"a": 1}),
        (dict[str, int], {"a": 1}),
        (dict[Literal["a", "b"], list[int]], {"a": [1]}),
        (dict[Literal["a"], int], {"a": 1}),
        (dict[Colour, int], {Colour.RED: 1}),
        (dict[str | None, int], {"a": 1}),
        (dict[str | int, int], {"a": 1}),
        (Any, {"a": 1}),
        (None, {"a": 1}),
    ],
)
def test_dicts_with_keys_that_are_text_can_be_stored(tp: Any, value: Any) -> None:
    codec = state_codec(tp)

    assert codec.decode(codec.encode(value)) == value


def test_rows_that_change_subtasks_may_have_dicts_with_any_keys() -> None:
    codec = exchange_codec(dict[int, int])

    assert codec.decode(codec.encode([{1: 2}])) == [{1: 2}]


class Untold:
    def __init__(self, n: int) -> None:
        self.n = n


@pytest.mark.parametrize(
    ("codec", "how"), [(JsonCodec, "read and written as JSON"), (MsgpackCodec, "stored")], ids=["json", "msgpack"]
)
@pytest.mark.parametrize("tp", [Untold, list[Untold], object])
def test_a_type_that_does_not_tell_what_its_values_hold_is_refused_with_the_plan(codec: Any, how: str, tp: Any) -> None:
    with pytest.raises(PlanError, match=f"cannot be {how}: declare their contents with a pydantic model"):
        codec(tp)


class LooksLikeACodec:
    name = "upper"

    def encode(self, value: str) -> bytes:
        return value.upper().encode()

    def decode(self, data: bytes) -> str:
        return data.decode()


@pytest.mark.parametrize("find", [codec_for, state_codec, exchange_codec])
@pytest.mark.parametrize(
    ("given", "says"),
    [
        (LooksLikeACodec(), "LooksLikeACodec has encode and decode but does not inherit Codec"),
        (StrCodec, r"StrCodec is a codec class, not a codec: pass an object, StrCodec\(...\)"),
    ],
)
def test_what_is_nearly_a_codec_is_refused_with_what_it_lacks(find: Any, given: Any, says: str) -> None:
    with pytest.raises(PlanError, match=says):
        find(given)
