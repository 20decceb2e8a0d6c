"""Sources are asked together where one request can, and one that has no answer holds up nobody else's."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest

from kafka_eos import Pipeline
from kafka_eos._util.retry import Retrier, RetryInterrupted
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.source import PositionsOrRetry, SupportsIdentityCheck
from kafka_eos.coordination.sources import GroupedSources, SourceCoordinator, retry_until_all_answer
from kafka_eos.core.errors import ConfigError, Retryable
from kafka_eos.core.ids import Epoch, EpochId, SplitId, Term
from kafka_eos.core.json_values import Positions
from kafka_eos.testing import ListSource, MemorySink

CTX = JobContext("j", Term(1), {})


class Shared(ListSource):
    """Of a server that answers for all its sources, and of some of them only after a while."""

    asked: list[list[str]]

    def __init__(self, name: str, server: str, away: int = 0) -> None:
        super().__init__([1, 2], name=name)
        self.place, self.away = server, away

    def scope(self, ctx: JobContext) -> str:
        return self.place

    def server(self, ctx: JobContext) -> str:
        return self.place

    def discover_all(
        self, ctx: JobContext, asked: Sequence[tuple[Any, Positions | None]]
    ) -> Sequence[PositionsOrRetry]:
        Shared.asked.append([source.name for source, _ in asked])
        return [source.told(source.discover(ctx, known)) for source, known in asked]

    def get_all_end_positions(self, ctx: JobContext, asked: Sequence[Any]) -> Sequence[PositionsOrRetry]:
        Shared.asked.append([source.name for source in asked])
        return [source.told(source.get_end_positions(ctx)) for source in asked]

    def told(self, answer: Positions) -> PositionsOrRetry:
        self.away -= 1
        return Retryable(f"{self.name} has no leader") if self.away >= 0 else answer


@pytest.fixture(autouse=True)
def _nothing_asked() -> None:
    Shared.asked = []


def test_sources_of_one_scope_are_asked_together() -> None:
    sources = {"a": Shared("a", "x"), "b": ListSource([3], name="b"), "c": Shared("c", "x"), "d": Shared("d", "y")}

    found = GroupedSources(sources).discover(CTX, dict.fromkeys(sources))

    assert Shared.asked == [["a", "c"], ["d"]]
    assert {name: source.discover(CTX, None) for name, source in sources.items()} == found
    Shared.asked.clear()
    assert GroupedSources(sources).ends(CTX, ["a", "b", "c"]) == {
        name: sources[name].get_end_positions(CTX) for name in "abc"
    }
    assert Shared.asked == [["a", "c"]]


def test_who_has_no_answer_is_asked_again_alone_and_the_reason_is_said() -> None:
    said: list[str] = []
    sources = GroupedSources({"a": Shared("a", "x"), "b": Shared("b", "x", away=2), "c": Shared("c", "x")})
    known: dict[str, Positions | None] = {"a": None, "b": None, "c": None}

    found = retry_until_all_answer(
        Retrier(threading.Event(), said.append),
        "look",
        list(known),
        lambda names: sources.discover(CTX, {name: known[name] for name in names}),
    )

    assert list(found) == ["a", "b", "c"]
    assert Shared.asked == [["a", "b", "c"], ["b"], ["b"]]
    assert said == ["look: b: b has no leader; trying again"] * 2


def test_waiting_ends_when_it_is_told_to() -> None:
    stop = threading.Event()
    stop.set()

    with pytest.raises(RetryInterrupted, match="b has no leader"):
        retry_until_all_answer(
            Retrier(stop, lambda text: None),
            "look",
            ["b"],
            lambda names: GroupedSources({"b": Shared("b", "x", away=9)}).ends(CTX, names),
        )


def test_a_server_that_is_away_is_the_trouble_of_its_own_sources() -> None:
    class Away(Shared):
        def discover_all(
            self, ctx: JobContext, asked: Sequence[tuple[Any, Positions | None]]
        ) -> Sequence[PositionsOrRetry]:
            raise Retryable("away")

    sources = {"a": Away("a", "x"), "b": Away("b", "x"), "c": Shared("c", "x")}
    found = GroupedSources(sources).discover(CTX, dict.fromkeys(sources))

    assert {name: isinstance(answer, Retryable) for name, answer in found.items()} == {"a": True, "b": True, "c": False}
    assert SplitId("c/0") in found["c"]  # type: ignore[operator]


class Told(ListSource):
    """Of a server whose sources are shown how far the job is, unless ``error`` is in the way."""

    def __init__(self, name: str, server: str, told: list[str], error: Exception | None = None) -> None:
        super().__init__([1], name=name)
        self.place, self.told, self.error = server, told, error

    def scope(self, ctx: JobContext) -> str:
        return self.place

    def server(self, ctx: JobContext) -> str:
        return self.place

    def notify_committed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        self.told.append(self.name)
        if self.error is not None:
            raise self.error


class Checked(SupportsIdentityCheck, Told):
    """Whose input is compared with what was read; its server is away for the first of two requests."""

    def ensure_same_input(self, ctx: JobContext, read: Sequence[tuple[Any, Positions]]) -> None:
        self.told.append("+".join(source.name for source, _ in read))
        if len(self.told) == 1:
            raise Retryable("away")


def test_sources_of_one_scope_are_compared_together_until_their_server_answers() -> None:
    told: list[str] = []
    pipeline = Pipeline("job")
    for source in (
        Checked("a", "x", told),
        ListSource([1], name="b"),
        Checked("c", "x", told),
        Checked("d", "y", told),
    ):
        pipeline.source(source, name=source.name).sink(MemorySink(), name=f"from-{source.name}")
    inputs = SourceCoordinator(pipeline.plan(), lambda: CTX, Retrier(threading.Event(), lambda text: None))
    positions = {name: {SplitId(f"{name}/0"): {"index": 0}} for name in "abcd"}

    assert inputs.verifies_input
    inputs.ensure_same_input(positions)
    assert told == ["a+c", "a+c", "d"]


def test_a_server_that_has_no_answer_is_told_of_one_source_an_epoch() -> None:
    told: list[str] = []
    away, refused = Retryable("no coordinator"), ConfigError("no right")
    sources = {
        "a": Told("a", "x", told),
        "b": Told("b", "x", told, refused),
        "c": Told("c", "x", told, away),
        "d": Told("d", "x", told),
        "e": Told("e", "y", told),
    }
    stop = threading.Event()

    def tell() -> dict[str, Exception]:
        epoch = EpochId(Epoch(1), Term(1))
        return GroupedSources(sources).report_offsets(CTX, epoch, {name: {} for name in sources}, Retrier(stop, print))

    assert tell() == {"b": refused, "c": away, "d": away}
    assert told == ["a", "b", "c", "e"]
    told.clear()
    stop.set()
    assert tell() == {}, "an attempt that ends says nothing of its offsets"
    assert told == []
