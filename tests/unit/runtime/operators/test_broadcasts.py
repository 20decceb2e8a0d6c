"""Broadcast state: what each subtask's copy holds, through checkpoints and other numbers of subtasks, and what is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_eos import (
    BroadcastContext,
    BroadcastProcessFunction,
    KeyedBroadcastContext,
    KeyedBroadcastProcessFunction,
    OutputTag,
    Pipeline,
    connect,
    monotonic,
)
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.abc.state import StateHandle
from kafka_eos.codecs import KeyCodec
from kafka_eos.connectors.kafka import Record
from kafka_eos.core.errors import PlanError, PoisonRecord
from kafka_eos.core.ids import Epoch
from kafka_eos.core.records import Batch, Watermark
from kafka_eos.plan import BroadcastConnectNode, Plan
from kafka_eos.runtime.exchange.routing import make_restore_router
from kafka_eos.runtime.operators.event_time import WatermarkSchedule
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.state import broadcast_copies as copies
from kafka_eos.runtime.state.key_groups import key_group_range
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink, TimestampedValue, run_local
from tests.unit.runtime.operators.test_event_time import Bench, rows

Rule = Record[str, int]
SEEN = OutputTag("seen", str)


class Over(KeyedBroadcastProcessFunction[str, tuple[str, int], Rule, Any]):
    """Each row with the rules that it is over, and how many rows of its key there were."""

    def open(self, ctx: KeyedBroadcastContext) -> None:
        self.rules = ctx.broadcast_state("rules", str, int)
        self.count = ctx.value_state("count", int, 0)

    def process(self, key: str, value: tuple[str, int]) -> Iterable[Any]:
        self.count.put(self.count.get() + 1)
        return [(*value, self.count.get(), [name for name, least in self.rules.items() if value[1] > least])]

    def process_broadcast(self, value: Rule) -> None:
        self.rules.put(value.key, value.value)


class Plain(BroadcastProcessFunction[tuple[str, int], Rule, Any]):
    """The same without keys; rows that are over nothing go aside."""

    side_outputs = (SEEN,)

    def open(self, ctx: BroadcastContext) -> None:
        self.ctx, self.rules = ctx, ctx.broadcast_state("rules", str, int)

    def process(self, value: tuple[str, int]) -> Iterable[Any]:
        over = [name for name, least in self.rules.items() if value[1] > least]
        if not over:
            self.ctx.output(SEEN, value[0])
        return [(*value, over)] if over else []

    def process_broadcast(self, value: Rule) -> None:
        if value.value == 13:
            raise ValueError("unlucky")
        self.rules.put(value.key, value.value)


def flow(function: Any = Over, *, on_error: Any = "stop", table: bool = True, timed: bool = False) -> Pipeline:
    pipeline = Pipeline("rules")
    stream: Any = pipeline.source(ListSource([]), name="stream")
    if timed:
        stream = stream.with_timestamps(lambda row: row[1], watermarks=monotonic())
    source: Any = pipeline.table if table else pipeline.source
    given: dict[str, Any] = {"values": Rule} if table else {}
    told: Any = source(ListSource([]), name="rules", on_error=on_error, **given)
    if issubclass(function, KeyedBroadcastProcessFunction):
        stream = stream.key_by(lambda row: row[0], name="by-key", values=tuple)
    made: Any = connect(stream, told.broadcast()).process(function, name="apply")
    made.sink(MemorySink(), name="sink")
    for tag in function.side_outputs:
        made.side_output(tag).sink(MemorySink(), name=tag.name)
    return pipeline


def told(*changes: tuple[str | None, int | None]) -> Batch[Any]:
    return rows([Record(key, value) for key, value in changes], [0] * len(changes), source="rules")


@dataclass
class Subtasks:
    """A chain for each subtask, with its share of the state."""

    plan: Plan
    directory: Path
    closing: ExitStack
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    out: list[Any] = field(default_factory=list)
    letters: list[Any] = field(default_factory=list)
    sessions: int = 0

    def open(self, count: int, handles: Sequence[StateHandle] = ()) -> list[OperatorChain]:
        self.sessions += 1
        self.backends = [self._backends(subtask, count, handles) for subtask in range(count)]
        outputs: dict[str, Callable[[Batch[Any]], None]] = {
            sink.name: lambda batch: self.letters.extend(batch.values) for sink in self.plan.sinks
        }
        outputs["sink"] = lambda batch: self.out.extend(batch.values)
        self.chains = [OperatorChain(self.plan, each, outputs, subtask=at) for at, each in enumerate(self.backends)]
        for chain in self.chains:
            self.closing.callback(chain.close)
        return self.chains

    def _backends(self, subtask: int, count: int, handles: Sequence[StateHandle]) -> dict[str, Any]:
        return {
            node.name: open_backend(
                "rocksdb" if node.keyed else "memory",
                node.name,
                self.directory / f"{self.sessions}-{subtask}-{node.name}",
                key_group_range(subtask, count),
                [handle for handle in handles if handle.operator == node.name],
                self.storage,
                copied=isinstance(node, BroadcastConnectNode),
            )
            for node in self.plan.nodes
            if node.stateful
        }

    def checkpoint(self) -> list[StateHandle]:
        for chain in self.chains:
            chain.flush()
        return [each.snapshot(Epoch(1))(self.storage) for of in self.backends for each in of.values()]


NAMES = st.sampled_from(["a", "b", "c", "long", "é"])
CHANGES = st.lists(st.tuples(NAMES, st.none() | st.integers(0, 9)), max_size=6)
STEPS = st.lists(st.tuples(CHANGES, st.integers(0, 9), st.integers(1, 3)), min_size=1, max_size=4)


@settings(deadline=None, max_examples=30)
@given(STEPS)
def test_each_copy_has_what_all_were_told_through_checkpoints_and_other_numbers_of_subtasks(steps: Any) -> None:
    rules: dict[str, int | None] = {}
    wanted: list[Any] = []
    with TemporaryDirectory() as directory, ExitStack() as closing:
        subtasks = Subtasks(flow(Plain).plan(), Path(directory), closing)
        handles: list[StateHandle] = []
        for changes, value, count in steps:
            chains = subtasks.open(count, handles)
            rules.update(changes)
            over = [
                name
                for name in sorted(rules, key=KeyCodec().encode)
                if (rules[name] or 0) < value and rules[name] is not None
            ]
            for number, chain in enumerate(chains):
                chain.push("rules", told(*changes))
                chain.push("stream", rows([(str(number), value)], [0], source="stream"))
                wanted += [(str(number), value, over)] if over else []
            handles = subtasks.checkpoint()
            assert copies.find_differing_copies(handles) == []

    assert subtasks.out == wanted


def test_a_checkpoint_has_each_entry_once_and_the_reader_shows_it(tmp_path: Path) -> None:
    with ExitStack() as closing:
        subtasks = Subtasks(flow().plan(), tmp_path, closing)
        for chain in subtasks.open(3):
            chain.push("rules", told(*((f"rule-{n}", n) for n in range(40))))
        shared = [handle for handle in subtasks.checkpoint() if handle.operator == "apply-broadcast"]
        alone = Subtasks(flow().plan(), tmp_path / "alone", closing, subtasks.storage)
        alone.open(1, shared)
        whole = [handle for handle in alone.checkpoint() if handle.operator == "apply-broadcast"]

    sizes = [sum(file.size for file in handle.files) for handle in shared]
    assert all(sizes)
    assert sum(sizes) < sum(file.size for handle in whole for file in handle.files) + 3 * 64
    assert {state["kind"] for handle in shared for state in handle.states} == {"broadcast"}
    assert [state["definition"] for state in shared[0].states] == [{"table": "rules"}]


def test_copies_that_differ_are_found(tmp_path: Path) -> None:
    with ExitStack() as closing:
        subtasks = Subtasks(flow().plan(), tmp_path, closing)
        first, second = subtasks.open(2)
        for chain in (first, second):
            chain.push("rules", told(("a", 1)))
        same = subtasks.checkpoint()
        second.push("rules", told(("b", 2)))
        different = subtasks.checkpoint()

    copies.expect_same(same)
    with pytest.raises(PlanError, match=r"'rules' of operator 'apply-broadcast' differs between workers.*"):
        copies.expect_same(different)


def test_copies_of_a_job_that_may_process_twice_are_not_compared(tmp_path: Path) -> None:
    with ExitStack() as closing:
        subtasks = Subtasks(flow().plan(), tmp_path, closing)
        subtasks.open(1)
        given: Any = ("memory", "apply-broadcast", tmp_path / "other", range(128), (), subtasks.storage)
        backend = open_backend(*given, copied=True, compared=False)
        (stored,) = subtasks.backends[0]["apply-broadcast"].snapshot(Epoch(1))(subtasks.storage).states
        backend.snapshot(Epoch(1))(subtasks.storage)

    assert stored["marks"] == {"copy": stored["marks"]["copy"]}  # type: ignore[index,call-overload]


def test_a_row_that_is_refused_changes_nothing_and_one_subtask_writes_its_dead_letter(tmp_path: Path) -> None:
    with ExitStack() as closing:
        plan = flow(Plain, on_error=DeadLetters(MemorySink())).plan()
        subtasks = Subtasks(plan, tmp_path, closing)
        for number, chain in enumerate(subtasks.open(3)):
            chain.push("rules", told(("a", 1), ("a", 13), (None, 2)))
            chain.push("stream", rows([(str(number), 5)], [0], source="stream"))

    assert subtasks.out == [("0", 5, ["a"]), ("1", 5, ["a"]), ("2", 5, ["a"])]
    assert [(letter.operator, letter.error_type) for letter in subtasks.letters] == [
        ("apply", "ValueError"),
        ("apply", "ValueError"),
    ]


def test_a_row_that_is_refused_stops_the_job_in_every_subtask(tmp_path: Path) -> None:
    with ExitStack() as closing:
        subtasks = Subtasks(flow(Plain).plan(), tmp_path, closing)
        for chain in subtasks.open(2):
            with pytest.raises(PoisonRecord, match="unlucky"):
                chain.push("rules", told(("a", 13)))


def test_what_one_row_writes_is_read_by_it_and_in_the_order_of_keys() -> None:
    class Folded(Over):
        def process_broadcast(self, value: Rule) -> None:
            self.rules.put("b", 1)
            self.rules.put("a", len(self.rules))
            self.rules.remove("b")
            self.rules.put("c", int(list(self.rules.items()) == [("a", 1)]))
            assert "b" not in self.rules
            if value.value == 2:
                self.rules.clear()

    made = run_local(flow(Folded), {"stream": [("k", 5)], "rules": [Record("x", 1)]})
    cleared = run_local(flow(Folded), {"stream": [("k", 5)], "rules": [Record("x", 1), Record("x", 2)]})

    assert made["sink"] == [("k", 5, 1, ["a", "c"])]
    assert cleared["sink"] == [("k", 5, 1, [])]


class Changing(Over):
    def process(self, key: str, value: tuple[str, int]) -> Iterable[Any]:
        self.rules.put("a", 1)
        return []


class Keyless(Over):
    def process_broadcast(self, value: Rule) -> None:
        self.count.put(1)


class KeylessTimer(Over):
    def open(self, ctx: KeyedBroadcastContext) -> None:
        super().open(ctx)
        self.timers = ctx.timers()

    def process_broadcast(self, value: Rule) -> None:
        self.timers.register(5)

    def on_timer(self, key: str, time: int) -> Iterable[Any]:
        return []


class Yielding(Over):
    def process_broadcast(self, value: Rule) -> None:
        yield 1  # type: ignore[misc]


class Emitting(Over):
    side_outputs = (SEEN,)

    def open(self, ctx: KeyedBroadcastContext) -> None:
        super().open(ctx)
        self.ctx = ctx

    def process_broadcast(self, value: Rule) -> None:
        self.ctx.output(SEEN, "x")


class Later(Over):
    def open(self, ctx: KeyedBroadcastContext) -> None:
        super().open(ctx)
        self.ctx = ctx

    def process(self, key: str, value: tuple[str, int]) -> Iterable[Any]:
        self.ctx.broadcast_state("more", str, int)
        return []


class Twice(Over):
    def open(self, ctx: KeyedBroadcastContext) -> None:
        super().open(ctx)
        ctx.broadcast_state("rules", str, int)


class OddKeys(Over):
    def open(self, ctx: KeyedBroadcastContext) -> None:
        ctx.broadcast_state("rules", float, int)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (Changing, "can be changed only in process_broadcast"),
        (Keyless, "process_broadcast used keyed state or timers"),
        (KeylessTimer, "process_broadcast used keyed state or timers"),
        (Yielding, "process_broadcast must not emit"),
        (Emitting, "only process and timers emit to side outputs"),
        (Later, "declare broadcast state 'more' in open"),
        (Twice, "the broadcast state name 'rules' is taken"),
        (OddKeys, "keys of broadcast state 'rules' are str, int, bytes or tuples"),
    ],
)
def test_what_would_make_copies_differ_is_refused(function: Any, says: str) -> None:
    pipeline = flow(function, timed=function is KeylessTimer)
    rules = [] if function in (Changing, Later) else [Record("a", 1)]

    with pytest.raises(PlanError, match=says):
        run_local(pipeline, {"stream": [("k", 5)], "rules": rules})


class Timed5(Over):
    """Says the rules that there are five milliseconds behind each row."""

    def open(self, ctx: KeyedBroadcastContext) -> None:
        super().open(ctx)
        self.timers, self.ctx = ctx.timers(), ctx

    def process(self, key: str, value: tuple[str, int]) -> Iterable[Any]:
        self.timers.register(self.ctx.timestamp + 5)
        return []

    def on_timer(self, key: str, time: int) -> Iterable[Any]:
        return [(key, time, list(self.rules.keys()))]


def test_event_time_is_that_of_the_stream_and_timers_read_the_rules(tmp_path: Path) -> None:
    with ExitStack() as closing:
        bench = Bench(flow(Timed5, timed=True).plan(), tmp_path, closing)
        chain = bench.open(splits=("stream/0",))
        chain.push("stream", rows([("a", 1)], [1], source="stream"))
        chain.push("rules", told(("late", 1)))
        chain.push("stream", rows([("b", 9)], [9], source="stream"))
        chain.advance("rules-broadcast", Watermark(1_000))

    assert [value for batch in bench.out for value in batch.values] == [("a", 6, ["late"])]


def test_timers_that_a_snapshot_has_left_read_the_rules_that_it_holds(tmp_path: Path) -> None:
    """It is taken while they fire. A rule that comes behind the restart comes behind all of them."""
    plan, keys, storage = flow(Timed5, timed=True).plan(), 3000, MemoryStorage()
    one_step = WatermarkSchedule(0.0, lambda: 0.0, slice=0.0)
    with ExitStack() as closing:
        before = Bench(plan, tmp_path / "before", closing, one_step, storage)
        chain = before.open(splits=("stream/0",))
        chain.push("rules", told(("first", 1)))
        chain.advance("rules-broadcast", Watermark(1_000))
        chain.push("stream", rows([(str(n), 1) for n in range(keys)], [1] * keys, source="stream"))
        chain.push("stream", rows([("last", 9)], [9], source="stream"))
        assert chain.has_due_work
        chain.flush(whole=False)
        handles = [backend.snapshot(Epoch(1))(storage) for backend in before.backends.values()]
        made = before.values
        after = Bench(plan, tmp_path / "after", closing, one_step, storage)
        chain = after.open(handles, splits=("stream/0",))
        chain.resume()
        while chain.has_due_work:
            chain.continue_due()
        chain.push("rules", told(("second", 1)))
        made += after.values

    assert 0 < len(before.values) < keys
    assert sorted(made) == sorted((str(n), 6, ["first"]) for n in range(keys))


def test_a_stream_waits_for_the_table_of_its_rules() -> None:
    assert flow().plan().prerequisites == {"stream": frozenset({"rules"})}
    assert flow(Plain).plan().joins_of_tables == {"rules": frozenset({"apply-broadcast"})}
    assert flow(table=False).plan().prerequisites == {}


def test_rows_under_way_to_what_was_no_broadcast_state_are_refused() -> None:
    plan = flow().plan()
    split = make_restore_router(plan, plan.node("rules-broadcast"), 2, {})

    with pytest.raises(PlanError, match="they would not reach all workers"):
        split(0, told(("a", 1)))


def test_a_function_that_is_not_of_the_connection_is_refused() -> None:
    pipeline = Pipeline("odd")
    stream = pipeline.source(ListSource([("a", 1)]), name="stream")
    other: Any = pipeline.source(ListSource([("a", 1)]), name="other")

    with pytest.raises(PlanError, match=r"connect needs two streams with keys, or a stream and a \.broadcast\(\)"):
        connect(stream.key_by(lambda row: row[0]), other)


def test_a_table_that_is_not_broadcast_and_a_function_of_another_kind_are_refused() -> None:
    pipeline = Pipeline("odd")
    stream = pipeline.source(ListSource([("a", 1)]), name="stream")
    table: Any = pipeline.table(ListSource([Record("a", 1)], name="rules"), name="rules", values=Rule)
    unkeyed: Any = connect(stream, table.broadcast())
    keyed: Any = connect(stream.key_by(lambda row: row[0]), table.broadcast(name="again"))

    with pytest.raises(PlanError, match=r"table\.broadcast\(\) sends the whole table to all workers"):
        connect(stream, table)
    with pytest.raises(PlanError, match="stream without keys and a broadcast one runs a BroadcastProcessFunction, not"):
        unkeyed.process(Over)
    with pytest.raises(PlanError, match="stream with keys and a broadcast one runs a KeyedBroadcastProcessFunction"):
        keyed.process(Plain())
    with pytest.raises(PlanError, match="runs a BroadcastProcessFunction, not the function"):
        unkeyed.process(lambda row: [row])


def test_a_stream_of_rules_needs_no_table() -> None:
    made = run_local(
        flow(Plain, table=False),
        {"stream": [TimestampedValue(("k", 5), 3), ("j", 1)], "rules": [Record("a", 2)]},
    )

    # Sources come one after the other in their order: the stream is first.
    assert dict(made) == {"sink": [], "seen": ["k", "j"]}
    assert replace(told(("a", 1)), lane=1).lane == 1
