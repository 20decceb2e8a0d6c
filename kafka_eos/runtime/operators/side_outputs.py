"""Side outputs: what an operator emits beside its output, and how the streams part behind it.

Rule: a value with a tag goes no further than to the nodes right behind its operator, of which each takes its own. To
all that follows they are filters: ordinals count the outputs of a row within the stream that they are in.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from kafka_eos.core.records import Batch
from kafka_eos.runtime.operators.stateless import Stateless


@dataclass(slots=True)
class Tagged:
    """A value on its way to the side output of that name."""

    tag: str
    value: Any


class SideOutput(Stateless):
    """Takes the values with ``tag``; None takes those without one, which are the operator's output."""

    def __init__(self, tag: str | None) -> None:
        self._tag = tag

    def process(self, batch: Batch[Any]) -> Batch[Any]:
        if self._tag is None:
            plain = [type(value) is not Tagged for value in batch.values]
            return batch if all(plain) else batch.where(plain)
        mine = batch.where([type(value) is Tagged and value.tag == self._tag for value in batch.values])
        return replace(mine, values=[value.value for value in mine.values])
