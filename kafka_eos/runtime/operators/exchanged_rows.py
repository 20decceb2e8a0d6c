"""Rows at an exchange: checked when they reach it, so that a row that cannot be encoded is known.

Rule: which rows an exchange can carry depends neither on the number of workers nor on checkpoints. So all of them are
checked. Rows that leave the worker are encoded, once, and sent in this encoding.
"""

from __future__ import annotations

import datetime
from types import NoneType
from typing import Any, Final

from msgspec import Struct

from kafka_eos.core.records import Batch
from kafka_eos.plan import ForwardNode, Node

_PLAIN: Final = frozenset((dict, list, str, int, float, bool, bytes, NoneType, datetime.datetime, datetime.time))
"""Classes of values that need no declared type."""


class EncodedRows(Struct, frozen=True):
    """A batch at an exchange, with its encoded values."""

    batch: Batch[Any]
    values: bytes


class UnencodableRows(Exception):
    """A batch has values that its exchange cannot encode; none of its rows were passed on. The cause is the reason."""


def encode_rows(node: Node, batch: Batch[Any]) -> EncodedRows:
    """Encode the values of a batch for an exchange. Raises UnencodableRows."""
    assert node.exchange_codec is not None  # every exchange has one
    try:
        return EncodedRows(batch, node.exchange_codec.encode(batch.values))
    except Exception as error:
        raise UnencodableRows(node.name) from error


def expect_encodable(node: Node, batch: Batch[Any]) -> None:
    """Raise UnencodableRows if an exchange could not encode the values of a batch that stays in its worker.

    Rows of unknown type that always stay in their subtask are not checked.
    """
    if isinstance(node, ForwardNode) and not node.typed:
        return
    assert node.exchange_codec is not None  # every exchange has one
    try:
        node.exchange_codec.expect_encodable(batch.values)
    except Exception as error:
        raise UnencodableRows(node.name) from error


def lacks_type(node: Node, value: Any) -> bool:
    """Return whether an exchange could encode the class of a rejected value if the class were declared."""
    return node.exchange_codec is not None and node.exchange_codec.schema == {} and type(value) not in _PLAIN
