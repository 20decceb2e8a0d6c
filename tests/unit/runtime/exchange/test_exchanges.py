"""The exchanges of three workers over real sockets: each channel brings what went into it, in order, to whom it is for.

Who gets a row, and what stands between two rows, is worked out here once more. A seed decides what happens next.
"""

from __future__ import annotations

import random
import socket
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from kafka_eos import Pipeline, ProcessFunction, Stream
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.codecs import KeyCodec
from kafka_eos.config.settings import Settings
from kafka_eos.core.records import Batch, RawOrigin, RawRecord, Watermark
from kafka_eos.plan import Plan
from kafka_eos.runtime.exchange.channels import Exchanges
from kafka_eos.runtime.exchange.input_queues import Barrier, InputChannel
from kafka_eos.runtime.exchange.network import Arrival, BarrierArrived, WatermarkArrived
from kafka_eos.runtime.state.key_groups import group_of, key_group_range
from kafka_eos.testing import ListSource, MemorySink
from tests.examples import seeds

WORKERS = 3
KEYS = ["a", "b", "c", 7, b"\xff", ("a", 7), ()]
Channel = tuple[int, int, int]
"""Exchange, sender and receiver."""


class Identity(ProcessFunction[Any, Any, Any]):
    def process(self, key: Any, value: Any) -> Iterator[Any]:
        yield value


def _plan() -> Plan:
    """One exchange of each kind. Records of "in" may become dead letters."""
    pipeline = Pipeline("ways")
    stream = pipeline.source(ListSource([]), name="in", on_error=DeadLetters(MemorySink()))
    pipeline.source(ListSource([]), name="other").sink(MemorySink(), name="else")
    seen = stream.key_by(str, name="by-key", values=int).process(Identity, name="seen")
    spread = seen.rebalance(name="spread", values=int).broadcast(name="copied", values=int)
    there = spread.forward(name="stays", values=int)

    def body(rows: Stream[int]) -> tuple[Stream[int], Stream[int]]:
        return rows.filter(bool), rows

    there.iterate(body, name="rounds", values=int).sink(MemorySink(), name="out")
    stream.key_by(str).fold(name="sum", init=int, step=int.__add__, merge=int.__add__, state=int).sink(
        MemorySink(), name="sums"
    )
    return pipeline.plan()


PLAN = _plan()
EDGES = {node.name: edge for edge, node in enumerate(PLAN.exchanges)}
STAYING = {EDGES["stays"], EDGES["rounds-feedback"]}


@dataclass(frozen=True)
class Row:
    """All that is known of one value on its way."""

    value: int
    key: Any
    lane: int
    update: int | None
    branch: str
    time: int | None
    source: str
    raw: RawRecord


def _rows(batch: Batch[int]) -> list[Row]:
    nothing = [None] * len(batch)
    return [
        Row(
            value,
            (batch.keys or nothing)[n],
            batch.lane,
            (batch.updates or nothing)[n],
            (batch.branch or [""] * len(batch))[n],
            (nothing if batch.event_times is None else batch.event_times)[n],
            batch.origin.source,
            batch.origin.raw(batch.origin_rows[n]),
        )
        for n, value in enumerate(batch.values)
    ]


@dataclass(frozen=True)
class BarrierItem:
    """Among what was sent, and among what has arrived. ``overtakes``: what was sent before may arrive behind it."""

    epoch: int
    aligned: bool
    overtakes: bool = False


Item = Row | Watermark | BarrierItem


@dataclass
class Worker:
    subtask: int
    exchanges: Exchanges
    came: dict[Channel, list[Item]] = field(default_factory=lambda: defaultdict(list))
    """What was processed here."""

    def __post_init__(self) -> None:
        entries = [entry for name in EDGES for entry in self.exchanges.inputs(name)]
        self.inputs: dict[tuple[int, int], InputChannel] = {entry.channel: entry for entry in entries}
        assert len(self.inputs) == len(entries)
        self.senders = [self.exchanges.make_row_output(edge, self._deliver) for edge in EDGES.values()]
        self.signals = [self.exchanges.make_watermark_output(edge, self._deliver_time) for edge in EDGES.values()]

    def _deliver(self, edge: int, batch: Batch[Any]) -> None:
        self.inputs[edge, self.subtask].put(batch)

    def _deliver_time(self, edge: int, watermark: Watermark) -> None:
        self.inputs[edge, self.subtask].put(watermark)

    def receive(self, *, later: bool) -> int:
        """What has arrived; ``later``: all that waits for company has waited long enough."""
        arrivals = self.exchanges.pump(time.monotonic() + 1000 * later, 0.0)
        for arrival in arrivals:
            self.inputs[arrival.edge, arrival.sender].put(_entry(arrival))
        return len(arrivals)

    def process(self, channel: tuple[int, int]) -> None:
        entry, channel_of_all = self.inputs[channel], (*channel, self.subtask)
        owed = entry.credit_due
        match entry.take():
            case Barrier(epoch=epoch, aligned=aligned):
                self.came[channel_of_all].append(BarrierItem(epoch, aligned))
            case Watermark() as watermark:
                self.came[channel_of_all].append(watermark)
            case rows:
                self.came[channel_of_all] += _rows(self.exchanges.decode(channel[0], rows))
                self.exchanges.processed(*channel, rows)
                self.exchanges.credit(*channel, owed)


def _entry(arrival: Arrival) -> Any:
    match arrival:
        case BarrierArrived(epoch=epoch, aligned=aligned):
            return Barrier(epoch, 0.0, aligned)
        case WatermarkArrived(watermark=watermark):
            return watermark
        case _:
            return arrival.frame


class Cluster:
    """All workers, and what should come out of each channel."""

    def __init__(self, seed: int, settings: Settings, directory: Path, closing: ExitStack) -> None:
        self.random = random.Random(seed)
        peers: list[dict[int, socket.socket]] = [{} for _ in range(WORKERS)]
        for one, other in combinations(range(WORKERS), 2):
            peers[one][other], peers[other][one] = socket.socketpair()
        self.workers = [self._worker(n, peers[n], settings, directory / str(n), closing) for n in range(WORKERS)]
        self.sent: dict[Channel, list[Item]] = defaultdict(list)
        self.overtaken: dict[tuple[int, int, int], list[Row]] = {}
        """By exchange, sender and epoch."""
        self.turns = {worker.subtask: worker.subtask for worker in self.workers}
        """Who gets the next share of what a sender spreads."""
        self.values = self.epochs = self.time = 0

    def _worker(self, subtask: int, peers: Any, settings: Settings, directory: Path, closing: ExitStack) -> Worker:
        directory.mkdir()
        given = (PLAN, settings, PLAN.exchanges, peers, subtask, WORKERS, directory, closing)
        return Worker(subtask, Exchanges(*given))

    # ------------------------------------------------------------ what happens

    def step(self) -> None:
        worker, edge = self.random.choice(self.workers), self.random.randrange(len(EDGES))
        match self.random.randrange(12):
            case 0 | 1 | 2:
                self.send(worker, edge)
            case 3:
                self.time += 1
                self.signal(worker, edge, Watermark(self.time, idle=self.random.random() < 0.3))
            case 4:
                self.barrier(worker, edge)
            case 5 | 6:
                worker.receive(later=self.random.random() < 0.3)
            case 7:
                entry = self.random.choice(list(worker.inputs.values()))
                worker.exchanges.credit(*entry.channel, entry.credit_early())
            case _:
                waiting = [channel for channel, entry in worker.inputs.items() if entry.queued]
                if waiting:
                    worker.process(self.random.choice(waiting))

    def drain(self) -> None:
        quiet = 0
        for _ in range(10_000):
            moved = sum([worker.receive(later=True) for worker in self.workers])
            for worker in self.workers:
                for channel, entry in worker.inputs.items():
                    while entry.queued:
                        worker.process(channel)
                        moved += 1
            quiet = 0 if moved else quiet + 1
            if quiet > 5:  # rows go out, credit comes back, and more rows go out
                assert all(worker.exchanges.empty for worker in self.workers)
                return
        raise AssertionError("something moves for ever")

    def send(self, worker: Worker, edge: int) -> None:
        batch = self._batch(edge)
        parts: dict[int, list[Row]] = defaultdict(list)
        for row, targets in zip(_rows(batch), self._targets(worker.subtask, edge, batch), strict=True):
            for target, sent in targets.items():
                parts[target].append(Row(**{**vars(row), "branch": sent}))
        for target, rows in parts.items():
            self.sent[edge, worker.subtask, target] += rows
        worker.senders[edge](batch)

    def signal(self, worker: Worker, edge: int, watermark: Watermark) -> None:
        for target in self._receivers(worker.subtask, edge):
            self.sent[edge, worker.subtask, target].append(watermark)
        worker.signals[edge](watermark)

    def barrier(self, worker: Worker, edge: int) -> None:
        self.epochs += 1
        overtakes, aligned = self.random.random() < 0.5, self.random.random() < 0.5
        for target in self._receivers(worker.subtask, edge):
            if target != worker.subtask:
                barrier = BarrierItem(self.epochs, aligned and not overtakes, overtakes)
                self.sent[edge, worker.subtask, target].append(barrier)
        frames = worker.exchanges.send_barrier(edge, self.epochs, overtakes, aligned and not overtakes)
        rows = [row for frame in frames for row in _rows(worker.exchanges.decode(edge, frame))]
        assert overtakes or not rows
        self.overtaken[edge, worker.subtask, self.epochs] = rows

    def _batch(self, edge: int) -> Batch[int]:
        size, chance = self.random.randint(1, 4), self.random
        source, topic = chance.choice(["in", "other"]), chance.choice(["t", "u"])
        self.values += size
        numbers = range(self.values - size, self.values)
        of_some = [n for n in numbers if n == numbers[0] or chance.random() < 0.7]
        raws = [RawRecord(topic, n % 5, n, n * 7 - 1, *self._content(source), ()) for n in of_some]
        rows = sorted(chance.choices(range(len(raws)), k=size))
        keyed = edge in (EDGES["by-key"], EDGES["sum-partial"]) or chance.random() < 0.5
        return Batch(
            list(numbers),
            chance.choice([rows, range(size)]) if len(raws) == size else rows,
            RawOrigin(source, raws),
            keys=chance.choices(KEYS, k=size) if keyed else None,
            lane=chance.randint(0, 1),
            updates=chance.choice([None, [n + 1 for n in numbers]]),
            branch=chance.choice([None, [f"{n}-" for n in numbers]]),
            event_times=chance.choice([None, [n - 50 for n in numbers]]),
        )

    def _content(self, source: str) -> tuple[bytes | None, bytes | None]:
        """Of a source without dead letters, nobody needs it."""
        return (b"k", self.random.randbytes(3)) if source == "in" else (None, None)

    def _receivers(self, sender: int, edge: int) -> range | list[int]:
        return [sender] if edge in STAYING else range(WORKERS)

    def _targets(self, sender: int, edge: int, batch: Batch[int]) -> Iterator[dict[int, str]]:
        """Who gets each row, and its branch there."""
        branches = batch.branch or [""] * len(batch)
        if edge == EDGES["copied"]:
            yield from ({target: f"{branch}{target}-" for target in range(WORKERS)} for branch in branches)
        elif edge == EDGES["spread"]:
            share, first = -(-len(batch) // WORKERS), self.turns[sender]
            self.turns[sender] += -(-len(batch) // share)
            yield from ({(first + n // share) % WORKERS: branch} for n, branch in enumerate(branches))
        elif edge in STAYING:
            yield from ({sender: branch} for branch in branches)
        else:
            yield from ({self._owner(key): branch} for key, branch in zip(batch.keys or (), branches, strict=True))

    def _owner(self, key: Any) -> int:
        group = group_of(KeyCodec().encode(key))
        (owner,) = (n for n in range(WORKERS) if group in key_group_range(n, WORKERS))
        return owner

    # ------------------------------------------------------------ what must be so

    def check(self) -> None:
        came = {channel: items for worker in self.workers for channel, items in worker.came.items()}
        for channel in self.sent.keys() | came.keys():
            self._check(channel, self.sent[channel], came.get(channel, []))
        exchanges = [worker.exchanges for worker in self.workers]
        assert sum(each.frames_sent for each in exchanges) == sum(each.frames_processed for each in exchanges) > 0
        assert all(each.has_room(edge) for each in exchanges for edge in EDGES.values())
        for each in exchanges:
            assert not any(channel.on_the_way for channel in each._network._channels.values()), "credit is missing"

    def _check(self, channel: Channel, sent: list[Item], came: list[Item]) -> None:
        """Rows and watermarks as they were sent; barriers in their places, but those that overtake or are overtaken."""
        edge, sender, _ = channel
        assert _without_barriers(came) == _without_barriers(sent), channel
        arrived = {each.epoch: at for at, each in enumerate(came) if isinstance(each, BarrierItem)}
        newest = max((each.epoch for each in sent if isinstance(each, BarrierItem) and each.overtakes), default=0)
        for at, barrier in enumerate(sent):
            if not isinstance(barrier, BarrierItem):
                continue
            if barrier.epoch not in arrived:
                assert barrier.epoch < newest, f"{barrier} is lost"
                continue
            found = came[arrived[barrier.epoch]]
            assert isinstance(found, BarrierItem) and found.aligned == barrier.aligned
            before, due = _rows_of(came[: arrived[barrier.epoch]]), _rows_of(sent[:at])
            mine = set(due)
            assert before + [row for row in self.overtaken[edge, sender, barrier.epoch] if row in mine] == due


def _without_barriers(items: list[Item]) -> list[Item]:
    return [item for item in items if not isinstance(item, BarrierItem)]


def _rows_of(items: list[Item]) -> list[Row]:
    return [item for item in items if isinstance(item, Row)]


def _settings(seed: int) -> Settings:
    """As users cannot make them: some ten rows are on their way, and one frame is held."""
    chance = random.Random(seed)
    aligned = chance.random() < 0.5
    settings = Settings(
        checkpoint_mode="aligned" if aligned else "unaligned",
        alignment_spill=chance.choice([2000, 100_000]) if aligned else 0,
        batch_size=chance.choice([1, 3, 6]),
        buffer_timeout=chance.choice([0.0, 60.0]),
    )
    return settings.model_copy(update={"exchange_memory": chance.choice([100, 20_000, 1 << 20])})


@pytest.mark.limits("tiny")
@pytest.mark.parametrize("seed", seeds(8))
def test_each_channel_brings_what_went_into_it(tmp_path: Path, seed: int) -> None:
    with ExitStack() as closing:
        cluster = Cluster(seed, _settings(seed), tmp_path, closing)
        for _ in range(400):
            cluster.step()
        cluster.drain()
        cluster.check()
