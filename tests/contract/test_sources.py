"""Every source of the package keeps the contract of ``abc.Source``, and sources that do not are found out."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from msgspec import structs

from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.core.json_values import Position, Positions
from kafka_eos.testing import ContractBroken, ListSource, SourceUnderTest, check_source
from kafka_eos.testing.list_source import ListReader
from tests.examples import seeds
from tests.producers import in_order
from tests.waiting import PATIENCE

WORDS = ["one", "two", "three", "four", "five", "six"]


def of_list(make: Callable[[Sequence[str]], ListSource] = lambda words: ListSource(words, splits=2)) -> SourceUnderTest:
    """A list has its rows at once, so nobody waits long for what does not come."""
    words = [*WORDS]
    return SourceUnderTest(lambda: make(words), WORDS, expire=words.clear, timeout=1.0)


def test_a_list() -> None:
    check_source(of_list)


# ---------------------------------------------------------------- sources that break the contract


class Broken(ListSource):
    """``reader`` makes the readers, in place of ``ListReader``."""

    made: type[ListReader] = ListReader

    def reader(self, ctx: Any, positions: Positions) -> ListReader:
        return self.made(self, ctx.operator, positions)


def with_reader(reader: type[ListReader]) -> Callable[[], SourceUnderTest]:
    source = type("Source", (Broken,), {"made": reader})
    return lambda: of_list(lambda words: source(words, splits=2))


class Ahead(ListReader):
    """Its positions are those of what it has fetched."""

    def positions(self) -> Positions:
        return {split: _at(index + 1) for split, index in self._next.items()}


class Greedy(ListReader):
    def poll(self, max_records: int, timeout: float) -> Any:
        return super().poll(max_records + 1, timeout)


class Restless(ListReader):
    def pause(self, splits: Any) -> None:
        """It goes on."""


class Doubling(ListReader):
    def assign(self, positions: Positions) -> None:
        """It begins anew."""
        super().assign(dict.fromkeys(positions, _at(0)))


class Deaf(ListReader):
    def list_splits_at_end(self) -> Any:
        return []


class Hasty(ListReader):
    def has_reached(self, ends: Positions) -> bool:
        return True


class Early(ListReader):
    def lag(self) -> int:
        return 0


def _at(index: int) -> Position:
    return {"index": index}


class Swapping(ListReader):
    """Two neighbours change places, in the rows that are read first of a split."""

    def poll(self, max_records: int, timeout: float) -> Any:
        batch = super().poll(max_records, timeout)
        if batch is None or batch.origin.offsets[0] > 0 or len(batch) < 2:
            return batch
        rows = [1, 0, *range(2, len(batch))]
        return structs.replace(batch, values=[batch.values[row] for row in rows], origin_rows=rows)


class AllOrNone(ListReader):
    """One split that is paused holds back the others."""

    def poll(self, max_records: int, timeout: float) -> Any:
        return None if self._paused else super().poll(max_records, timeout)


class Backward(ListSource):
    """It begins with the last value of a split."""

    def __init__(self, values: Sequence[str], splits: int) -> None:
        super().__init__(values, splits=splits)
        self.splits = {split: values[::-1] for split, values in self.splits.items()}


class Remembering(ListSource):
    """How far it was read it keeps itself, and so for all readers of a worker process."""

    def __init__(self, values: Sequence[str], splits: int) -> None:
        super().__init__(values, splits=splits)
        self.furthest: dict[str, Position] = {}

    def reader(self, ctx: Any, positions: Positions) -> ListReader:
        known = {split: self.furthest.get(split, at) for split, at in positions.items()}
        return RememberingReader(self, ctx.operator, known)


class RememberingReader(ListReader):
    def poll(self, max_records: int, timeout: float) -> Any:
        batch = super().poll(max_records, timeout)
        self._source.furthest.update(self.positions())  # type: ignore[attr-defined]
        return batch


class Forgetful(ListSource):
    def discover(self, ctx: Any, known: Positions | None) -> Positions:
        return super().discover(ctx, None)


class Lenient(ListSource):
    """What is gone it takes for read."""

    def discover(self, ctx: Any, known: Positions | None) -> Positions:
        return known or super().discover(ctx, None)


@pytest.mark.parametrize(
    ("target", "check", "why"),
    [
        (with_reader(Ahead), "replays", "records are missing"),
        (with_reader(Greedy), "reads-all", "returned 3 rows"),
        (with_reader(Restless), "pause", "all paused returned"),
        (with_reader(Doubling), "replays", "or duplicate records"),
        (with_reader(Deaf), "at-end", "at_end names"),
        (with_reader(Hasty), "ends-stay", "reports that it has reached the ends"),
        (with_reader(Early), "at-end", "lag"),
        (with_reader(Swapping), "reads-all", "list/0 was read in another order than"),
        (with_reader(Swapping), "replays", "list/0 was read in another order: .*, and before"),
        (with_reader(AllOrNone), "schedules", "none of list/. was read within"),
        (
            lambda: of_list(lambda words: Backward(words, splits=2)),
            "reads-all",
            "list/0 was read in another order than",
        ),
        (
            lambda: of_list(lambda words: Remembering(words, splits=2)),
            "schedules",
            "is due in list/|is more to read|was read within",
        ),
        (lambda: of_list(lambda words: Forgetful(words, splits=2)), "known-splits-stay", "unchanged"),
        (lambda: of_list(lambda words: Lenient(words, splits=2)), "input-lost", "InputLost was not raised"),
    ],
)
def test_a_source_that_breaks_the_contract_is_named(
    target: Callable[[], SourceUnderTest], check: str, why: str
) -> None:
    with pytest.raises(ContractBroken, match=f"(?s){check}: .*{why}"):
        check_source(target, check, seeds=range(10))


def test_a_schedule_that_fails_is_told_step_by_step_and_its_seed_repeats_it() -> None:
    def told(*drawn: int) -> str:
        with pytest.raises(ContractBroken, match=r"\(list/. at offset 0\), and .* is due in list/") as caught:
            check_source(with_reader(Doubling), "schedules", seeds=drawn)
        return str(caught.value)

    story = told(*range(20))
    seed = re.search(
        r"seeds=\[(\d+)\], step by step:\n +1\. start 1 continues from epoch 0; parallelism is \d\n", story
    )

    assert seed is not None and told(int(seed[1])) == story


# ---------------------------------------------------------------- Kafka


def test_kafka(bootstrap: str, topic: Callable[..., str], admin: AdminClient) -> None:
    """Two topics with an end and without, and one of several partitions."""

    def several(**options: Any) -> SourceUnderTest:
        names = [topic(partitions=1), topic(partitions=1)]
        _send(bootstrap, names, WORDS)

        def grow() -> list[str]:
            _send(bootstrap, names, ["seven", "eight"])
            return ["seven", "eight"]

        def lose() -> None:
            for gone in admin.delete_records([TopicPartition(name, 0, 3) for name in names]).values():
                gone.result(PATIENCE)

        return SourceUnderTest(
            lambda: KafkaSource(names, value=str, config={"fetch.wait.max.ms": 10}, **options),
            WORDS,
            append=grow,
            expire=lose,
            settings=settings,
        )

    settings = {"bootstrap_servers": bootstrap}
    check_source(several, seeds=seeds(2))
    check_source(lambda: several(until="latest"), "bounded", "replays", "at-end")


def _send(bootstrap: str, topics: Sequence[str], words: Sequence[str]) -> None:
    producer = in_order(bootstrap)
    for number, word in enumerate(words):
        producer.produce(topics[number % len(topics)], word.encode())
    assert producer.flush(PATIENCE) == 0
