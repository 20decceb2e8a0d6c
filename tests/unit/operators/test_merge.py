"""Folds in two phases: whatever the batches, epochs and subtasks, the state at the end of an epoch is the plain fold's.

``Job`` plays an engine of several subtasks: a chain each, the plan's own routes between them, an epoch as Algorithm 1
has it. Rows cross the exchange as bytes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_eos import Pipeline
from kafka_eos.checkpoints.storage import MemoryStorage
from kafka_eos.errors import ConfigError, PlanError, PoisonRecord
from kafka_eos.exchange import wire
from kafka_eos.exchange.routing import router
from kafka_eos.ids import Epoch, Term
from kafka_eos.interfaces import StateDescriptor, StateHandle
from kafka_eos.operators import merge
from kafka_eos.operators.chain import Chain
from kafka_eos.operators.fold import STATE
from kafka_eos.plan import Fold, KeyBy, PartialFold, Plan
from kafka_eos.provenance import column, parse
from kafka_eos.records import Batch
from kafka_eos.state.backends import open_backend
from kafka_eos.state.keygroups import key_group_range
from kafka_eos.testing import ListSource, MemorySink, run_local
from kafka_eos.testing.sources import ListOrigin

Words = list[tuple[str, int]]


def both(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def counted(acc: tuple[int, int], word: tuple[str, int]) -> tuple[int, int]:
    return acc[0] + 1, acc[1] + word[1]


def nothing() -> tuple[int, int]:
    return 0, 0


def made(local: bool = False, **changes: Any) -> Plan:
    """Count and sum of the numbers of each letter, in two phases."""
    pipeline = Pipeline("sums")
    words = pipeline.source("words", ListSource([])).flat_map(lambda line: line, name="word")
    fold = {"init": nothing, "step": counted, "merge": both, "state": tuple[int, int], **changes}
    keyed = words.key_by(lambda word: word[0], name="letter", local=local)
    keyed.fold("sum", **fold).sink("out", MemorySink())
    return pipeline.plan()


class Job:
    """Subtasks of one plan at work. ``out`` has the outputs of the sink, an epoch a list."""

    def __init__(self, plan: Plan, parallelism: int, closing: ExitStack, handles: Sequence[StateHandle] = ()) -> None:
        self.plan, self.parallelism, self.out = plan, parallelism, list[list[tuple[str, Any]]]()
        self.storage = STORAGE
        self._texts: list[str] = []
        self._epoch: list[Batch[Any]] = []
        self._offsets: Counter[int] = Counter()
        directory = Path(closing.enter_context(TemporaryDirectory()))
        self.backends = [self._backend(n, directory / str(n), handles) for n in range(parallelism)]
        for backend in self.backends:
            closing.callback(backend.close)
        routes = [{n.name: self._sender(n, s) for n in plan.exchanges} for s in range(parallelism)]
        outputs = {"out": self._epoch.append}
        backends = [{"sum": backend} for backend in self.backends]
        self.chains = [Chain(plan, b, outputs, r) for b, r in zip(backends, routes, strict=True)]
        self._waiting: list[tuple[int, str, bytes]] = []

    def _backend(self, subtask: int, directory: Path, handles: Sequence[StateHandle]) -> Any:
        groups = key_group_range(subtask, self.parallelism)
        local = self.plan.keeps_local("sum")
        return open_backend("memory", "sum", directory, groups, handles, self.storage, local=local)

    def _sender(self, node: Any, subtask: int) -> Callable[[Batch[Any]], None]:
        split = router(node, subtask, self.parallelism)

        def send(batch: Batch[Any]) -> None:
            for target, part in split(batch):
                self._waiting.append((target, node.name, wire.encode(part, node.wire, keep_raw=False)))

        return send

    def read(self, partition: int, lines: Sequence[Words]) -> None:
        """A batch of lines of a partition; the rows stay on their way until ``deliver``."""
        start = self._offsets[partition]
        self._offsets[partition] += len(lines)
        origin = ListOrigin("words", "words", partition, start, list(lines))
        self.chains[partition % self.parallelism].push("words", Batch(list(lines), range(len(lines)), origin))

    def deliver(self) -> None:
        waiting, self._waiting = self._waiting, []
        for target, name, frame in waiting:
            self.chains[target].push(name, wire.decode(frame, self.plan.node(name).wire))  # type: ignore[arg-type]

    def end_epoch(self) -> list[tuple[str, Any]]:
        """The barriers: of the sources' segment, then of the other one."""
        for segment in self.plan.segments:
            for chain in self.chains:
                chain.flush(segment.nodes)
            self.deliver()
        values = [value for batch in self._epoch for value in batch.values]
        self._texts += [text for batch in self._epoch for text in column(batch, Term(1), Epoch(1))]
        self._epoch.clear()
        return values

    def identities(self) -> list[str]:
        return [parse(text).identity for text in self._texts]

    def handles(self) -> list[StateHandle]:
        return [backend.snapshot(Epoch(1))(self.storage) for backend in self.backends]


STORAGE = MemoryStorage()


@contextmanager
def job(plan: Plan, parallelism: int, handles: Sequence[StateHandle] = ()) -> Iterator[Job]:
    with ExitStack() as closing:
        yield Job(plan, parallelism, closing, handles)


words = st.tuples(st.sampled_from("abcdé"), st.integers(-9, 9))
lines = st.lists(words, max_size=3)
batches = st.tuples(st.integers(0, 4), st.lists(lines, min_size=1, max_size=6))
epochs = st.lists(st.tuples(st.lists(st.tuples(batches, st.booleans()), max_size=6)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=60)
@given(epochs, st.integers(1, 3), st.sampled_from([1, 2, merge.MOST]))
def test_at_each_epochs_end_outputs_are_what_the_plain_fold_has_then(epochs: Any, parallelism: int, most: int) -> None:
    plain: dict[str, tuple[int, int]] = defaultdict(nothing)
    touched_in: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch, job(made(), parallelism) as running:
        for chain in running.chains:
            patch.setattr(chain._operators["sum-partial"], "_most", most)
        for (reads,) in epochs:
            touched = {word[0] for (_, batch), _ in reads for line in batch for word in line}
            for (partition, batch), delivered in reads:
                running.read(partition, batch)
                for word in (word for line in batch for word in line):
                    plain[word[0]] = counted(plain[word[0]], word)
                if delivered:
                    running.deliver()
            touched_in.update(touched)
            out = running.end_epoch()

            assert sorted(out) == sorted((key, plain[key]) for key in touched), "one output a key, with the fold's value"
        entries = {k: e for b in running.backends for k, e in b.value(_descriptor(running.plan, b)).items()}
        identities = running.identities()

    assert entries == {key: (touched_in[key], acc) for key, acc in plain.items()}
    assert len(set(identities)) == len(identities), "two outputs call themselves the same"


def _descriptor(plan: Plan, backend: Any) -> StateDescriptor[Any]:
    node = plan.node("sum")
    assert isinstance(node, Fold)
    backend._open.clear()  # the operator has it open; here it is looked at
    return StateDescriptor(STATE, node.key_codec, node.entry_codec)
