"""Codecs: conversion of values to bytes in topics and in state. ``codecs/json_codec.py`` has the default one.

``codec_for`` is for topics, ``state_codec`` for state, ``exchange_codec`` for rows that move between subtasks. All take
a type; for more control, pass a codec. ``topic_codec`` turns a format that depends on the topic, such as ``avro``, into
a codec.
"""

from __future__ import annotations

from typing import Any

from kafka_eos.abc.codec import Codec, ListCodec, RecordPart, TopicFormat
from kafka_eos.codecs.avro.avro_codec import AvroCodec
from kafka_eos.codecs.avro.registry_language import avro
from kafka_eos.codecs.avro.zoned_datetimes import ZONED_DATETIME
from kafka_eos.codecs.json_codec import JsonCodec
from kafka_eos.codecs.json_schema.registry_language import json_schema
from kafka_eos.codecs.msgpack_codec import KeyCodec, MsgpackCodec
from kafka_eos.codecs.operator_state.pattern_codecs import PartialMatchesCodec, PatternRowsCodec
from kafka_eos.codecs.operator_state.stored_codecs import register_codec
from kafka_eos.codecs.operator_state.window_codecs import ElementsCodec, RowPanesCodec, WindowedCodec
from kafka_eos.codecs.operator_state.wrapping_codecs import CountedCodec, OptionalCodec
from kafka_eos.codecs.protobuf.user_formats import message_codec, protobuf
from kafka_eos.codecs.raw_codecs import BytesCodec, StrCodec
from kafka_eos.codecs.registry.registry_client import Registry
from kafka_eos.codecs.row_list_codecs import MsgpackListCodec, PerValueListCodec
from kafka_eos.codecs.type_inspection import (
    dict_without_text_keys,
    expect_type,
    is_codec,
    is_message,
    is_model,
    type_name,
)
from kafka_eos.core.errors import PlanError

__all__ = [
    "AvroCodec",
    "BytesCodec",
    "CountedCodec",
    "ElementsCodec",
    "JsonCodec",
    "KeyCodec",
    "PatternRowsCodec",
    "OptionalCodec",
    "MsgpackCodec",
    "PartialMatchesCodec",
    "Registry",
    "RowPanesCodec",
    "StrCodec",
    "WindowedCodec",
    "avro",
    "codec_for",
    "json_schema",
    "protobuf",
    "register_codec",
    "state_codec",
    "topic_codec",
    "exchange_codec",
]


def topic_codec(tp: Any, topic: str, part: RecordPart) -> Codec[Any]:
    """Return the codec of a key or value of one topic, as ``codec_for``; formats that depend on the topic are
    accepted."""
    if isinstance(tp, TopicFormat):
        return tp.for_topic(topic, part)
    return codec_for(tp)


def codec_for(tp: Any) -> Codec[Any]:
    """Return the codec of a topic's values: raw for None and bytes, UTF-8 for str, a codec unchanged, else JSON.

    Classes that Protobuf has generated are encoded as Protobuf.
    """
    if tp is None or tp is bytes:
        return BytesCodec()
    if tp is str:
        return StrCodec()
    if is_codec(tp):
        return tp
    expect_type(tp)
    return message_codec(tp) if is_message(tp) else JsonCodec(tp)


def state_codec(tp: Any) -> Codec[Any]:
    """Return the codec of a state: Avro for pydantic models, Protobuf for its messages, else MessagePack.

    The schema of Avro can evolve. ``Any`` and ``None`` mean "not declared"; then only values that survive unchanged are
    accepted. Raises PlanError for a type that cannot be stored: for example, keys of dicts must be str, because equal
    states must have equal bytes.
    """
    codec = _codec(tp)
    if isinstance(codec, MsgpackCodec) and (wrong := dict_without_text_keys(codec.type)) is not None:
        raise PlanError(
            f"type {type_name(tp)} cannot be stored: keys of a dict must be str, but those of "
            f"{wrong} are not; convert them to str, or store a list of pairs"
        )
    return codec


def exchange_codec(tp: Any) -> ListCodec[Any]:
    """Return the list codec of values that pass an exchange."""
    codec = _codec(tp)
    return MsgpackListCodec(codec.type) if isinstance(codec, MsgpackCodec) else PerValueListCodec(codec)


def _codec(tp: Any) -> Codec[Any]:
    if is_codec(tp):
        return tp
    expect_type(tp)
    if is_model(tp):
        return AvroCodec(tp, datetimes=ZONED_DATETIME)
    if is_message(tp):
        return message_codec(tp)
    return MsgpackCodec(Any if tp is None else tp)
