"""Side outputs of an operator, and the operators that split its output into streams.

Rule: a tagged value reaches only the nodes directly behind its operator, each of which selects one tag. For all
downstream nodes they are filters: ordinals count the outputs of a row within its stream.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.operator import Operator


class TaggedValue(Struct):
    """A value for the side output of that tag."""

    tag: str
    value: Any


class SideOutputOperator(Operator):
    """Passes the values with one tag; with None, those without a tag (the main output)."""

    def __init__(self, tag: str | None) -> None:
        self._tag = tag

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        if self._tag is None:
            plain = [type(value) is not TaggedValue for value in batch.values]
            return batch if all(plain) else batch.filter(plain)
        mine = batch.filter([type(value) is TaggedValue and value.tag == self._tag for value in batch.values])
        return replace(mine, values=[value.value for value in mine.values])
