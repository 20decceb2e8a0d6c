"""Codecs: how values become bytes in topics and in state. Open ``codecs/json_codec.py`` for the default one.

``codec_for`` is for topics, ``state_codec`` for state, ``wire_codec`` for rows that change subtasks. All take a type;
whoever needs more passes a codec. What ``avro`` gives becomes one in a topic, by ``topic_codec``.
"""

from __future__ import annotations

from typing import Any

from kafka_eos.abc.codec import Codec, ListCodec, Part, TopicFormat
from kafka_eos.codecs.avro.avro_codec import AvroCodec
from kafka_eos.codecs.avro.registry_language import avro
from kafka_eos.codecs.json_codec import JsonCodec
from kafka_eos.codecs.json_schema.registry_language import json_schema
from kafka_eos.codecs.msgpack_codec import KeyCodec, MsgpackCodec
from kafka_eos.codecs.operator_state.counted_value import Counted
from kafka_eos.codecs.operator_state.optional_value import Maybe
from kafka_eos.codecs.operator_state.pattern_codecs import Marked, Partials
from kafka_eos.codecs.operator_state.stored_codecs import register_codec
from kafka_eos.codecs.operator_state.window_codecs import Elements, RowPanes, WindowedCodec
from kafka_eos.codecs.protobuf.user_formats import message_codec, protobuf
from kafka_eos.codecs.raw_codecs import BytesCodec, StrCodec
from kafka_eos.codecs.registry.registry_client import Registry
from kafka_eos.codecs.row_list_codecs import EachValue, MsgpackList
from kafka_eos.codecs.type_inspection import dict_without_text_keys, is_codec, is_message, is_model, type_name
from kafka_eos.core.errors import PlanError

__all__ = [
    "AvroCodec",
    "BytesCodec",
    "Counted",
    "Elements",
    "JsonCodec",
    "KeyCodec",
    "Marked",
    "Maybe",
    "MsgpackCodec",
    "Partials",
    "Registry",
    "RowPanes",
    "StrCodec",
    "WindowedCodec",
    "avro",
    "codec_for",
    "json_schema",
    "protobuf",
    "register_codec",
    "state_codec",
    "topic_codec",
    "wire_codec",
]


def topic_codec(tp: Any, topic: str, part: Part) -> Codec[Any]:
    """As ``codec_for``, for a key or value of one topic: what depends on the topic may be given, too."""
    if isinstance(tp, TopicFormat) and not isinstance(tp, type):
        return tp.for_topic(topic, part)
    return codec_for(tp)


def codec_for(tp: Any) -> Codec[Any]:
    """The codec of a topic's values: None and bytes stay raw, str is UTF-8, a codec is itself, the rest is JSON.

    Classes that Protobuf has generated are in Protobuf.
    """
    if tp is None or tp is bytes:
        return BytesCodec()
    if tp is str:
        return StrCodec()
    if is_codec(tp):
        codec: Codec[Any] = tp
        return codec
    return message_codec(tp) if is_message(tp) else JsonCodec(tp)


def state_codec(tp: Any) -> Codec[Any]:
    """The codec of a state: Avro for pydantic models, whose schema can evolve; Protobuf for its messages; MessagePack
    for the rest.

    ``Any`` and ``None`` mean "not declared"; then only values that survive unchanged are accepted. PlanError for a type
    that cannot be stored: among others, dicts have keys that are str, because equal states must have equal bytes.
    """
    codec = _codec(tp)
    if isinstance(codec, MsgpackCodec) and (wrong := dict_without_text_keys(codec.type)) is not None:
        raise PlanError(
            f"type {type_name(tp)} cannot be stored: keys of a dict must be str, and those of {wrong} are not; "
            "make them str, or store a list of pairs"
        )
    return codec


def wire_codec(tp: Any) -> ListCodec[Any]:
    """The codec of values that change subtasks; the same choice as for state."""
    codec = _codec(tp)
    return MsgpackList(codec.type) if isinstance(codec, MsgpackCodec) else EachValue(codec)


def _codec(tp: Any) -> Codec[Any]:
    if is_codec(tp):
        codec: Codec[Any] = tp
        return codec
    if is_model(tp):
        return AvroCodec(tp)
    if is_message(tp):
        return message_codec(tp)
    return MsgpackCodec(Any if tp is None else tp)
