"""What sinks notice before a job begins."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from kafka_eos import Pipeline
from kafka_eos.abc.context import JobContext
from kafka_eos.coordination.coordinator import Coordinator
from kafka_eos.core.errors import ConfigError
from kafka_eos.testing import ListSource, MemorySink


class Noticing(MemorySink):
    """A sink to which something is worth a notice."""

    def __init__(self, *notices: str) -> None:
        super().__init__()
        self._notices = notices

    def check(self, ctx: JobContext) -> Sequence[str]:
        return self._notices


def test_what_several_sinks_notice_is_said_once_with_their_names(coordinator: Callable[..., Coordinator]) -> None:
    pipeline = Pipeline("notices")
    numbers = pipeline.source(ListSource([1]), name="numbers")
    for name in ("big", "small", "odd"):
        own = f"Topic {name} has one replica."
        numbers.sink(Noticing(own, "One hour.") if name != "odd" else Noticing(own), name=name)

    assert coordinator(pipeline).check() == [
        "Topic big has one replica.",
        "One hour. (Sinks: big, small.)",
        "Topic small has one replica.",
        "Topic odd has one replica.",
    ]


class Refusing(MemorySink):
    """A sink that cannot work as things are."""

    def __init__(self, why: str) -> None:
        super().__init__()
        self._why = why

    def check(self, ctx: JobContext) -> Sequence[str]:
        raise ConfigError(self._why)


def test_all_that_keeps_sinks_from_working_is_said_at_once(coordinator: Callable[..., Coordinator]) -> None:
    pipeline = Pipeline("refusals")
    numbers = pipeline.source(ListSource([1]), name="numbers")
    for name, why in (("big", "big is missing"), ("small", "one reason"), ("odd", "one reason")):
        numbers.sink(Refusing(why), name=name)

    with pytest.raises(ConfigError) as refused:
        coordinator(pipeline).check()
    assert str(refused.value).splitlines() == ["big is missing", "one reason"]
