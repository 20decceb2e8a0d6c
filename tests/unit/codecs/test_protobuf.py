"""Messages of Protobuf: as they are, as stored, and in Confluent's wire format with a registry in memory."""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from kafka_eos.codecs import Registry, codec_for, exchange_codec, protobuf, state_codec
from kafka_eos.codecs.protobuf.descriptor_pools import proto
from kafka_eos.codecs.protobuf.message_codec import ProtobufCodec
from kafka_eos.codecs.protobuf.registry_language import _written_place
from kafka_eos.codecs.registry.registry_client import Reference, RegisteredSchema
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.core.errors import ConfigError, PlanError
from kafka_eos.core.fault_attribution import ErrorRules, Fault
from tests.protobuf_witness import classes, proto3, told, written

SHOP = proto3(
    "message Order {",
    "  message Line { string article = 1; int32 quantity = 2; }",
    "  string user = 1;",
    "  repeated Line lines = 2;",
    "  map<string, int64> tags = 3;",
    "  optional int32 number = 4;",
    "}",
    "message Refund { string user = 1; }",
)
CLASSES = classes(SHOP)
Order, Refund = CLASSES["Order"], CLASSES["Refund"]
Line = Order.Line
ORDER = Order(user="ann", lines=[{"article": "a", "quantity": 1}], tags={"b": 2, "a": 1}, number=0)


@pytest.fixture
def registry() -> Registry:
    """One in memory, which only this test has."""
    return Registry(f"mock://{uuid4()}")


def codec(tp: Any, registry: Registry, **options: Any) -> Any:
    """Of a job that has started, unless nothing is to be registered."""
    made: Any = protobuf(tp, registry=registry, **{"auto_register": True, **options}).for_topic("orders", "value")
    if options.get("auto_register", True):
        made.check()
    return made


def by_others(registry: Registry, text: str, data: bytes, place: bytes = b"\0", *references: Reference) -> bytes:
    """A record that another program has written."""
    schema_id = registry.register("theirs", RegisteredSchema("PROTOBUF", text, references))
    return struct.pack(">bI", 0, schema_id) + place + data


# ---------------------------------------------------------------- as they are


@pytest.mark.parametrize("made", [protobuf, codec_for, state_codec, ProtobufCodec])
def test_a_message_comes_back(made: Callable[[Any], Any]) -> None:
    orders = made(Order)

    assert orders.decode(orders.encode(ORDER)) == ORDER
    assert orders.decode(orders.encode(Order())) == Order()


def test_rows_that_change_subtasks_come_back() -> None:
    rows = exchange_codec(Order)

    assert rows.decode(rows.encode([ORDER, Order()])) == [ORDER, Order()]


def test_equal_messages_have_equal_bytes() -> None:
    """Maps have no order."""
    several = [Order(tags=dict(sorted({f"k{n}": n for n in range(50)}.items(), key=lambda kv: order * kv[1])))
               for order in (1, -1)]  # fmt: skip

    assert len({protobuf(Order).encode(each) for each in several}) == 1


@pytest.mark.parametrize("wrong", [Refund(user="ann"), {"user": "ann"}, b"\n\3ann", None])
def test_what_is_no_such_message_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="expected Order, got"):
        protobuf(Order).encode(wrong)


@pytest.mark.parametrize("data", [b"\xff", b"\n\5ann", b"\n\2\xff\xfe", b"\x12\1\n"])
def test_bytes_that_are_no_message_are_the_records_fault(data: bytes) -> None:
    with pytest.raises(ValueError, match="not a valid Order") as raised:
        protobuf(Order).decode(data)
    assert ErrorRules().classify(raised.value) is Fault.RECORD


def test_what_is_required_must_be_there() -> None:
    tp = classes('syntax = "proto2"; message A { optional B b = 1; } message B { required int32 c = 1; }')["A"]
    made = protobuf(tp)

    with pytest.raises(ValueError, match="not a valid A"):
        made.encode(tp(b={}))
    with pytest.raises(ValueError, match=r"not a valid A: b\.c is required"):
        made.decode(tp(b={}).SerializePartialToString())
    assert made.decode(made.encode(tp(b={"c": 1}))).b.c == 1


@pytest.mark.parametrize("tp", [dict, int, "Order"])
def test_only_messages_are_taken(tp: Any) -> None:
    with pytest.raises(PlanError, match="is no class that protoc has generated"):
        protobuf(tp)


def test_a_subject_needs_a_registry() -> None:
    unsaid: Any = protobuf
    with pytest.raises(ConfigError, match=r"registry=… is missing"):
        unsaid(Order, auto_register=True)


def test_stored_messages_are_read_by_a_class_that_has_changed_compatibly() -> None:
    stored = state_codec(Order).schema
    newer = classes(SHOP.replace("int32 quantity", "int64 quantity").replace("string user = 1;", "string who = 1;"))
    other = classes(SHOP.replace("int32 quantity", "string quantity"))

    read = state_codec(newer["Order"]).reader_of(stored).decode(protobuf(Order).encode(ORDER))  # type: ignore[attr-defined]

    assert (read.who, read.lines[0].quantity) == ("ann", 1)
    with pytest.raises(ConfigError, match=r"lines\.quantity is int32 there, string here"):
        state_codec(other["Order"]).reader_of(stored)  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="the stored Protobuf schema is not usable"):
        state_codec(Order).reader_of({"message": "com.shop.Order", "files": "????"})  # type: ignore[attr-defined]


# ---------------------------------------------------------------- with a registry


@pytest.mark.parametrize("value", [ORDER, Refund(user="ann"), Line(article="a")], ids=lambda v: type(v).__name__)
def test_a_value_comes_back_and_confluents_deserializer_reads_it(registry: Registry, value: Any) -> None:
    """Whatever place its message has in the file."""
    made = codec(type(value), registry)
    data = made.encode(value)

    assert made.decode(data) == value
    assert told(type(value), data) == value


def test_keys_have_subjects_of_their_own_and_equal_keys_equal_bytes(registry: Registry) -> None:
    """Else a partitioner would not put them together."""
    keys: Any = protobuf(Order, registry=registry, auto_register=True).for_topic("orders", "key")
    keys.check()
    one, other = Order(user="ann", tags={"b": 2, "a": 1}), Order(tags={"a": 1, "b": 2}, user="ann")

    assert keys.subject == "orders-key"
    assert keys.encode(one) == keys.encode(other)
    assert keys.decode(keys.encode(one)) == one
    sink: KafkaSink[Any] = KafkaSink.records("orders", key=protobuf(Order, registry=registry), value=bytes)
    source: KafkaSource[Any] = KafkaSource.records("orders", key=protobuf(Order, registry=registry))
    assert sink.codecs()["key"].encode(one) == keys.encode(one)
    assert source.codecs()["key"].decode(keys.encode(one)) == one


def test_what_is_registered_is_the_file_as_text(registry: Registry) -> None:
    codec(Refund, registry)

    newest = registry.get_latest_version("orders-value")
    assert newest is not None
    assert newest.schema.text.startswith('syntax = "proto3";\npackage com.shop;\n\nmessage Order {\n  message Line {')


@pytest.mark.parametrize(
    "text", [SHOP + "\n// a comment", base64.b64encode(proto(Order.DESCRIPTOR.file).SerializeToString()).decode()]
)
def test_a_file_that_others_have_registered_is_written_with_if_it_means_the_same(registry: Registry, text: str) -> None:
    registry.register("orders-value", RegisteredSchema("PROTOBUF", text))

    for options in ({"auto_register": False}, {"auto_register": True}):
        orders = codec(Order, registry, **options)
        assert orders.decode(orders.encode(ORDER)) == ORDER
    newest = registry.get_latest_version("orders-value")
    assert newest is not None
    assert newest.schema.text == text


def test_a_file_whose_messages_are_in_other_places_is_another_one(registry: Registry) -> None:
    order, _, refund = SHOP.partition("message Refund")
    registry.register(
        "orders-value",
        RegisteredSchema("PROTOBUF", order.replace("message Order", "message Refund" + refund + "\nmessage Order")),
    )

    with pytest.raises(ConfigError, match="does not have the schema of Order"):
        codec(Order, registry, auto_register=False).encode(ORDER)


def test_nothing_is_registered_unless_asked_for_and_what_differs_is_told(registry: Registry) -> None:
    theirs = SHOP.replace("string user = 1", "int64 user = 1").replace("optional int32 number", "int32 num")
    registry.register("orders-value", RegisteredSchema("PROTOBUF", theirs))

    with pytest.raises(ConfigError) as refused:
        codec(Order, registry, auto_register=False).encode(ORDER)

    _, _, said = str(refused.value).partition("In its newest version, 1, it differs: ")
    assert said.partition(". Register it")[0].split("; ") == [
        "user is int64 there, string here",
        "number is called num there",
        "number is int32 there, optional int32 here",
    ]


@pytest.mark.parametrize(
    ("subject", "wanted"),
    [("topic", "orders-value"), ("record", "com.shop.Order"), ("topic-record", "orders-com.shop.Order")],
)
def test_the_subject_is_called_as_the_user_says(registry: Registry, subject: Any, wanted: str) -> None:
    assert codec(Order, registry, subject=subject).subject == wanted


def test_each_record_is_read_by_the_schema_that_it_was_written_with(registry: Registry) -> None:
    """A topic whose writer changes in mid-stream: packages and names of fields do not count, numbers do."""
    old = (
        SHOP.replace("com.shop", "com.theirs").replace("string user", "string customer").replace("int32 q", "uint32 q")
    )
    newer = proto3("message Order { string user = 1; string shop = 9; repeated int32 more = 10; }")
    there, then = classes(old)["Order"], classes(newer)["Order"]
    rows = [
        by_others(registry, old, there(customer="ann", tags={"a": 1}).SerializeToString()),
        by_others(registry, newer, then(user="bob", shop="s", more=[1]).SerializeToString()),
    ]
    orders = codec(Order, registry)

    with pytest.raises(ValueError, match=r"lines\.quantity is uint32 there, int32 here"):
        orders.decode(rows[0])
    fitting = by_others(registry, old.replace("uint32", "int32"), there(customer="ann").SerializeToString())
    assert [orders.decode(data).user for data in (fitting, rows[1], fitting, rows[1])] == ["ann", "bob", "ann", "bob"]


def test_a_message_of_another_name_is_refused_though_its_bytes_would_do(registry: Registry) -> None:
    refund = by_others(registry, SHOP, Refund(user="ann").SerializeToString(), b"\2\2")

    with pytest.raises(ValueError, match=r"it is a com\.shop\.Refund, not a com\.shop\.Order") as raised:
        codec(Order, registry).decode(refund)
    assert ErrorRules().classify(raised.value) is Fault.RECORD


def test_schemas_that_refer_to_others_are_read(registry: Registry) -> None:
    """Two subjects deep, and Protobuf's own files without a reference."""
    deep = proto3("message Deep { int32 n = 1; }", package="com.deep")
    line = proto3(
        'import "deep.proto";', "message Line { com.deep.Deep deep = 1; int32 quantity = 2; }", package="com.l"
    )
    order = proto3(
        'import "line.proto";',
        'import "google/protobuf/timestamp.proto";',
        'import "confluent/meta.proto";',
        "message Order { string user = 1; com.l.Line line = 9; google.protobuf.Timestamp at = 10; }",
    )
    registry.register("deep", RegisteredSchema("PROTOBUF", deep))
    registry.register("line", RegisteredSchema("PROTOBUF", line, (Reference("deep.proto", "deep", 1),)))
    data = classes(order, deep=deep, line=line)["Order"](user="ann", line={"deep": {"n": 1}}).SerializeToString()

    assert (
        codec(Order, registry).decode(by_others(registry, order, data, b"\0", Reference("line.proto", "line", 1))).user
        == "ann"
    )


def test_protobufs_own_files_can_be_imported(registry: Registry) -> None:
    text = proto3('import "google/protobuf/timestamp.proto";', "message Order { google.protobuf.Timestamp at = 1; }")
    tp = classes(text)["Order"]
    made = codec(tp, registry)

    assert made.decode(made.encode(tp(at={"seconds": 5}))).at.seconds == 5


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (lambda good: good[:5], "it is cut off before its message"),
        (lambda good: good[:5] + b"\2", "it is cut off before its message"),
        (lambda good: good[:5] + b"\2\x08" + good[6:], "its schema has no message in place 4"),
        (lambda good: good[:5] + b"\2\1" + good[6:], "its schema has no message in place -1"),
        (lambda good: good[:5] + b"\x80\0" + good[6:], "the place of a message that is 0 messages deep"),
        (lambda good: good[:5] + b"\xff" * 9, "it does not begin with the place of a message"),
        (lambda good: good[:5] + b"\xfe\xff\xff\xff\x0f", "2147483647 messages deep"),
        (lambda good: good[:-1], "not a valid Order"),
        (lambda good: good + b"\0", "not a valid Order"),
    ],
)
def test_a_bad_record_is_its_own_fault(registry: Registry, data: Callable[[bytes], bytes], said: str) -> None:
    orders = codec(Order, registry)

    with pytest.raises(ValueError, match=said) as raised:
        orders.decode(data(orders.encode(ORDER)))
    assert ErrorRules().classify(raised.value) is Fault.RECORD


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("message Order {", "it ends too early"),
        (proto3("message Order { Gone gone = 1; }"), "Gone"),
        (proto3("message Order { int32 a = 1; int32 b = 1; }"), "no usable Protobuf schema"),
        (proto3("message Order { int32 a = 0; }"), "no usable Protobuf schema"),
        ('edition = "2023"; message Order {}', "editions are not read"),
        ("message Order { " * 5000, "nested too deeply"),
        ("AAAA", "no usable Protobuf schema"),
    ],
)
def test_a_schema_that_is_none_is_the_records_fault(registry: Registry, text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as raised:
        codec(Order, registry).decode(by_others(registry, text, b""))
    assert ErrorRules().classify(raised.value) is Fault.RECORD


def test_sources_and_sinks_tell_where_their_schemas_come_from(registry: Registry) -> None:
    orders = protobuf(Order, registry=registry)

    source: KafkaSource[Any] = KafkaSource("orders", value=orders)
    sink: KafkaSink[Any] = KafkaSink("orders", value=orders)

    assert source.describe()["value"] == f"Protobuf Order, subject orders-value of {registry.url}"
    assert sink.describe()["value"] == f"Protobuf Order, subject orders-value of {registry.url}"
    assert KafkaSource("orders", value=Order).codecs()["value"].name == "protobuf"


def test_a_message_behind_a_map_is_in_the_place_that_its_text_says(registry: Registry) -> None:
    """Descriptors have a message for each map among the nested ones; the text has none, nor do others count it."""
    text = proto3("message Order { map<string, int64> tags = 1; message Line { string article = 1; } Line line = 2; }")
    tp = classes(text)["Order"].Line
    lines = codec(tp, registry)
    data = lines.encode(tp(article="a"))

    assert data[5:8] == b"\4\0\0"
    assert lines.decode(data) == tp(article="a")


MAPS = proto3(
    "message Order {",
    "  message First { int32 number = 9; }",
    "  map<string, int64> tags = 1;",
    "  message Line { string article = 1; }",
    "  message Last { string article = 1; int64 amount = 2; }",
    "}",
)


@pytest.mark.parametrize("registered", ["as written", "maps first"])
@pytest.mark.parametrize(
    ("name", "fields"),
    [("First", {"number": 5}), ("Last", {"amount": 5}), ("Last", {"article": "a", "amount": 5})],
)
def test_a_message_in_one_with_maps_is_read_whoever_wrote_it(
    registry: Registry, registered: str, name: str, fields: Any
) -> None:
    """Confluent's serializer for Python counts maps; a registry may have moved them before all messages."""
    tp = getattr(classes(MAPS)["Order"], name)
    tags = "  map<string, int64> tags = 1;"
    moved = MAPS.replace(f"{tags}\n", "").replace("message Order {", f"message Order {{\n{tags}")
    text = MAPS if registered == "as written" else moved
    message = tp(**fields)
    payload = message.SerializeToString()
    by_python = written(registry.url, "lines", [message])[0].removesuffix(payload)[5:]
    by_java = _written_place((0, ("First", "Line", "Last").index(name)))
    lines = codec(tp, registry)

    for place in (by_python, by_java):
        assert lines.decode(by_others(registry, text, payload, place)) == message


def test_a_message_that_may_be_one_of_two_is_rejected(registry: Registry) -> None:
    """Its place is that of the last one for Java, and of the one before for Python."""
    tp = classes(MAPS)["Order"].Last
    for data in (b"", tp(article="a").SerializeToString()):
        with pytest.raises(ValueError, match=r"place 0\.2 can be that of com\.shop\.Order\.Line or .*\.Last"):
            codec(tp, registry).decode(by_others(registry, MAPS, data, b"\4\0\4"))
    with pytest.raises(ValueError, match="fits? none of them"):
        codec(tp, registry).decode(by_others(registry, MAPS, b"\x78\1", b"\4\0\4"))


# ---------------------------------------------------------------- in batches


def test_a_batch_is_decoded_and_encoded_as_its_values_are(registry: Registry) -> None:
    """Also a message that is not the first one of its file, whose place takes more than a byte."""
    for tp, values in ((Order, [ORDER, Order(user="bob")]), (Refund, [Refund(user="ann"), Refund()])):
        one = codec(tp, registry, subject="topic-record")
        datas = [one.encode(value) for value in values]
        assert one.decode_batch(datas) is None, "its schema was not read yet"
        assert [one.decode(data) for data in datas] == values

        assert (one.decode_batch(datas), one.encode_batch(values)) == (values, datas)


@pytest.mark.parametrize(
    "bad",
    [
        pytest.param(lambda data: data[:-1], id="cut off"),
        pytest.param(lambda data: b"", id="empty"),
        pytest.param(lambda data: data[:5] + b"\2\2" + data[6:], id="another message"),
        pytest.param(lambda data: data[:4] + b"\x63" + data[5:], id="another schema"),
    ],
)
def test_a_batch_with_one_value_that_is_not_like_the_others_is_decoded_one_by_one(
    registry: Registry, bad: Callable[[bytes], bytes]
) -> None:
    one = codec(Order, registry)
    data = one.encode(ORDER)
    one.decode(data)

    assert one.decode_batch([data, data]) == [ORDER, ORDER]
    assert one.decode_batch([data, bad(data)]) is None
    assert one.decode_batch([bad(data), data]) is None
    assert one.decode_batch([]) is None
    assert one.encode_batch([ORDER, Refund()]) is None
