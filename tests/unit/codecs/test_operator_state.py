"""What operators keep comes back as it was, in whatever codecs their values have, and to tools without the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs import AvroCodec, MsgpackCodec
from kafka_eos.codecs.operator_state.pattern_codecs import PartialMatchesCodec, PatternRowsCodec
from kafka_eos.codecs.operator_state.stored_codecs import get_plain_codec, register_codec
from kafka_eos.codecs.operator_state.window_codecs import ElementsCodec, RowPanesCodec, WindowedCodec
from kafka_eos.codecs.operator_state.wrapping_codecs import CountedCodec, OptionalCodec
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.windows import Window, Windowed
from tests.examples import examples

Old = msgspec.defstruct("Order", [("user", str), ("dropped", str)])
New = msgspec.defstruct("Order", [("user", str), ("status", str, "open")])
TEXTS = MsgpackCodec[Any](str)
INTS = st.integers(-(2**63), 2**63 - 1)
PLACES = st.tuples(INTS, INTS, INTS)
KINDS: dict[str, tuple[Callable[[Codec[Any]], Codec[Any]], Callable[[Any], st.SearchStrategy[Any]]]] = {
    "counted": (CountedCodec, lambda value: st.tuples(st.integers(0, 2**64 - 1), value)),
    "maybe": (OptionalCodec, lambda value: st.none() | value),
    "elements": (ElementsCodec, lambda value: st.lists(st.tuples(value, PLACES))),
    "row-panes": (RowPanesCodec, lambda value: st.dictionaries(st.integers(0, 2**63 - 1), value)),
    "marked": (PatternRowsCodec, lambda value: st.lists(st.tuples(value, PLACES, st.integers(0, 2**63 - 1)))),
    "partials": (PartialMatchesCodec, lambda value: st.lists(st.lists(st.tuples(value, PLACES)).map(tuple))),
    "windowed": (
        lambda inner: WindowedCodec(inner, str),
        lambda value: st.builds(
            Windowed, st.text() | st.tuples(INTS, st.binary()), st.builds(Window, INTS, INTS), value
        ),
    ),
}
"""The codec of each kind around another one, and the values that it holds of values."""
PLAIN: dict[str, Callable[[Any], Any]] = {
    "counted": lambda pair: {"updates": pair[0], "accumulator": pair[1]},
    "maybe": lambda value: value,
    "elements": lambda elements: [{"value": each, "place": list(place)} for each, place in elements],
    "row-panes": lambda panes: [{"first": first, "value": panes[first]} for first in sorted(panes)],
}
"""What tools show of it."""


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@examples(10)
def test_what_is_stored_comes_back(kind: str, data: st.DataObject) -> None:
    codec_of, values = KINDS[kind]
    codec, value = codec_of(TEXTS), data.draw(values(st.text()))

    stored = codec.encode(value)

    assert codec.decode(stored) == value
    assert codec.name == f"{kind}-{TEXTS.name}"
    if kind in PLAIN:
        plain = get_plain_codec(codec.name, codec.schema)
        assert plain.name == codec.name
        assert plain.decode(stored) == PLAIN[kind](value)
        assert plain.encode(plain.decode(stored)) == stored


@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@examples(2)
def test_values_that_an_older_program_has_stored_are_read(kind: str, data: st.DataObject) -> None:
    codec_of, values = KINDS[kind]
    old, new = codec_of(AvroCodec[Any](Old)), codec_of(AvroCodec[Any](New))
    of_now = data.draw(values(st.just(New("a"))))
    stored = old.encode(of_old(of_now))

    assert new.reader_of(old.schema).decode(stored) == of_now


def of_old(value: Any) -> Any:
    """The same in values of the older program."""
    match value:
        case New():
            return Old("a", "gone")
        case dict():
            return {key: of_old(each) for key, each in value.items()}
        case list() | tuple():
            return type(value)(map(of_old, value))
        case Windowed():
            return Windowed(value.key, value.window, of_old(value.value))
    return value


def test_a_row_of_several_partial_matches_is_one_row_again() -> None:
    shared, other = ("a", (1, 0, 0)), ("b", (2, 0, 0))
    codec = PartialMatchesCodec(TEXTS)

    both, alone = codec.decode(codec.encode([(shared, other), (shared,)]))

    assert (both, alone) == ((shared, other), (shared,))
    assert both[0] is alone[0]
    assert codec.encode([both, alone]) == codec.encode([(shared, other), (shared,)])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("counted", {"updates": -1, "accumulator": "a"}),
        ("counted", {"updates": True, "accumulator": "a"}),
        ("counted", {"updates": 1}),
        ("counted", [("updates", 1), ("accumulator", "a")]),
        ("elements", [{"value": "a", "place": [1, 2, 3]}, {"value": "a"}]),
        ("elements", {"value": "a", "place": [1, 2, 3]}),
        ("elements", [["value", "place"]]),
        ("row-panes", [{"first": 1, "value": "a", "last": 2}]),
    ],
)
def test_what_a_tool_would_store_in_another_form_is_refused(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match="expected|updates is a number"):
        get_plain_codec(f"{name}-msgpack", None).encode(value)


ORDER: Any = {"type": "object", "properties": {"a": {}, "b": {}}, "required": ["a"]}


@pytest.mark.parametrize(
    "schema", [ORDER, {**ORDER, "$defs": {"X": {}}}, {"$ref": "#/$defs/Order", "$defs": {"X": {}, "Order": ORDER}}]
)
def test_a_tool_stores_no_value_with_other_fields_than_the_stored_type(schema: Any) -> None:
    codec = get_plain_codec("msgpack", schema)

    assert [codec.decode(codec.encode(value)) for value in ({"a": 1}, {"a": 1, "b": 2})] == [{"a": 1}, {"a": 1, "b": 2}]
    for value, said in (({"b": 1}, "lacks 'a'"), ({"a": 1, "c": 1}, "has 'c'")):
        with pytest.raises(ValueError, match=said):
            codec.encode(value)


def test_a_tool_stores_in_avro_what_the_schema_describes_and_nothing_else() -> None:
    written = AvroCodec[Any](New)
    codec = get_plain_codec(written.name, written.schema)

    assert codec.encode({"user": "a", "status": "new"}) == written.encode(New("a", "new"))
    for value in ({"user": "a"}, {"user": "a", "status": "new", "more": 1}, {"user": 1, "status": "new"}):
        with pytest.raises(ValueError, match="does not fit the Avro schema"):
            codec.encode(value)
    with pytest.raises(ValueError, match="does not fit the Avro schema"):
        codec.decode(b"\x04a")
    with pytest.raises(ConfigError, match="the stored Avro schema is not usable"):
        get_plain_codec(written.name, {"type": "other"})


def test_entries_that_differ_in_their_counts_alone_are_equal_without_them() -> None:
    codec = CountedCodec(TEXTS)

    assert {CountedCodec.uncounted(codec.encode((count, "a"))) for count in (0, 7)} == {codec.encode((0, "a"))}
    with pytest.raises(ValueError, match="at least 8 bytes, got 7"):
        codec.decode(bytes(7))


@pytest.mark.parametrize("name", ["msgpack", "key", "counted-own", "elements-own", "maybe-own", "row-panes-own"])
def test_no_codec_takes_the_name_of_one_that_tools_have(name: str) -> None:
    with pytest.raises(ConfigError, match="already exists: rename yours"):
        register_codec(name, lambda schema: TEXTS)


def test_an_entry_that_says_neither_one_nor_none_is_refused() -> None:
    with pytest.raises(ValueError, match="begins with 0 or 1"):
        OptionalCodec(TEXTS).decode(b"\x02a")
