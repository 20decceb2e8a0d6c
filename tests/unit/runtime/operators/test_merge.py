"""Folds in two phases: whatever the batches, epochs and subtasks, the state at the end of an epoch is the plain fold's.

``Job`` plays an engine of several subtasks: a chain each, the plan's own routes between them, an epoch as Algorithm 1
has it. Rows cross the exchange as bytes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kafka_eos import Pipeline
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.abc.state import StateDescriptor, StateHandle, Ttl
from kafka_eos.core.errors import ConfigError, PlanError, PoisonRecord
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance, parse_provenance
from kafka_eos.core.records import Batch, RawOrigin, RawRecord
from kafka_eos.plan import FoldNode, KeyByNode, PartialFoldNode, Plan
from kafka_eos.plan.explain import explain
from kafka_eos.runtime.exchange import wire_format as wire
from kafka_eos.runtime.exchange.routing import make_router
from kafka_eos.runtime.operators import OperatorContext, build_operator
from kafka_eos.runtime.operators.fold import STATE
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.runtime.operators.two_phase_fold import PartialFoldOperator
from kafka_eos.runtime.state.canonical_savepoint import write_canonical_state
from kafka_eos.runtime.state.epoch_scratch import MemorySpillStore, SpillStore, unbounded
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS, key_group_range
from kafka_eos.runtime.state.keyed_backend import open_backend
from kafka_eos.runtime.state.rocksdb_options import StateOptions
from kafka_eos.runtime.state.rocksdb_store import RocksSpillStore
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.job_storage import MemoryStorage
from kafka_eos.testing import ListSource, MemorySink, run_local
from kafka_eos.testing.list_source import ListOrigin
from tests.examples import examples
from tests.limits import set_limits

OPTIONS = StateOptions()
Words = list[tuple[str, int]]
Opened = Callable[[Path], SpillStore]


def both(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return one[0] + other[0], one[1] + other[1]


def counted(acc: tuple[int, int], word: tuple[str, int]) -> tuple[int, int]:
    return acc[0] + 1, acc[1] + word[1]


def nothing() -> tuple[int, int]:
    return 0, 0


def rocks(directory: Path, most: int) -> SpillStore:
    return RocksSpillStore(directory, most, OPTIONS)


def made(local: bool = False, **changes: Any) -> Plan:
    """Count and sum of the numbers of each letter, in two phases."""
    pipeline = Pipeline("sums")
    words = pipeline.source(ListSource([]), name="words").flat_map(lambda line: line, name="word")
    fold = {"init": nothing, "step": counted, "merge": both, "state": tuple[int, int], **changes}
    keyed = words.key_by(lambda word: word[0], name="letter", local=local)
    keyed.fold(name="sum", **fold).sink(MemorySink(), name="out")
    return pipeline.plan()


class Job:
    """Subtasks of one plan at work. ``out`` has the outputs of the sink, an epoch a list."""

    def __init__(
        self,
        plan: Plan,
        parallelism: int,
        closing: ExitStack,
        handles: Sequence[StateHandle] = (),
        scratch: Opened = lambda directory: unbounded(),
    ) -> None:
        self.plan, self.parallelism, self.out = plan, parallelism, list[list[tuple[str, Any]]]()
        self.storage = STORAGE
        self.now = 1_700_000_000_000
        """Milliseconds that the machine's clock shows."""
        self._texts: list[str] = []
        self._epoch: list[Batch[Any]] = []
        self.letters: list[Batch[Any]] = []
        self.offsets: Counter[int] = Counter()
        """The next one of each partition."""
        directory = Path(closing.enter_context(TemporaryDirectory()))
        self.backends = [self._backend(n, directory / str(n), handles) for n in range(parallelism)]
        for backend in self.backends:
            closing.callback(backend.close)
        routes = [{n.name: self._sender(n, s) for n in plan.exchanges} for s in range(parallelism)]
        outputs = {"out": self._epoch.append, "words-dead-letters": self.letters.append}
        backends = [{"sum": backend} for backend in self.backends]
        self.chains: dict[tuple[int, str], OperatorChain] = {}
        """By subtask and head, those of the plan's segments one after the other."""
        for segment, n in product(plan.segments, range(parallelism)):
            opened = OperatorChain(
                plan,
                backends[n],
                outputs,
                routes[n],
                segment.nodes,
                scratch=lambda name, n=n: scratch(directory / f"{name}.{n}"),  # type: ignore[misc]
            )
            closing.callback(opened.close)
            self.chains |= {(n, head): opened for head in segment.heads}
        self._waiting: list[tuple[int, str, bytes]] = []
        self.sent = 0
        """Rows that crossed an exchange."""

    def _backend(self, subtask: int, directory: Path, handles: Sequence[StateHandle]) -> Any:
        groups = key_group_range(subtask, self.parallelism)
        local = self.plan.has_local_state("sum")
        given = (groups, handles, self.storage)
        return open_backend("memory", "sum", directory, *given, local=local, clock=lambda: self.now)

    def _sender(self, node: Any, subtask: int) -> Callable[[Batch[Any]], None]:
        split = make_router(node, subtask, self.parallelism)

        def send(batch: Batch[Any]) -> None:
            for target, part in split(batch):
                self.sent += len(part)
                self._waiting.append((target, node.name, wire.encode(part, node.exchange_codec, keep_raw=False)))

        return send

    def read(self, partition: int, lines: Sequence[Words]) -> None:
        """A batch of lines of a partition; the rows stay on their way until ``deliver``."""
        start = self.offsets[partition]
        self.offsets[partition] += len(lines)
        origin = ListOrigin("words", "words", partition, start, list(lines))
        chain = self.chains[partition % self.parallelism, "words"]
        chain.push("words", Batch(list(lines), range(len(lines)), origin))

    def deliver(self) -> None:
        waiting, self._waiting = self._waiting, []
        for target, name, frame in waiting:
            self.chains[target, name].push(name, wire.decode(frame, self.plan.node(name).exchange_codec))  # type: ignore[arg-type]

    def end_epoch(self) -> list[tuple[str, Any]]:
        """The barriers: of the sources' segment, then of the other one."""
        for segment in self.plan.segments:
            for n in range(self.parallelism):
                self.chains[n, segment.heads[0]].flush()
            self.deliver()
        values = [value for batch in self._epoch for value in batch.values]
        self._texts += [text for batch in self._epoch for text in format_provenance(batch, "job", Term(1), Epoch(1))]
        self._epoch.clear()
        return values

    def identities(self) -> list[str]:
        return [parse_provenance(text).identity for text in self._texts]

    def handles(self) -> list[StateHandle]:
        return [backend.snapshot(Epoch(1))(self.storage) for backend in self.backends]


STORAGE = MemoryStorage()


def stored(job: Job) -> dict[str, Any]:
    """Number of outputs and accumulator of each key, as a snapshot has them."""
    node = job.plan.node("sum")
    assert isinstance(node, FoldNode)
    with TemporaryDirectory() as directory:
        groups, handles = range(MAX_KEY_GROUPS), job.handles()
        backend = open_backend("memory", "sum", Path(directory) / "sum", groups, handles, job.storage)
        return dict(backend.value(StateDescriptor(STATE, node.key_codec, node.entry_codec)).items())


@contextmanager
def job(
    plan: Plan,
    parallelism: int,
    handles: Sequence[StateHandle] = (),
    scratch: Opened = lambda directory: unbounded(),
) -> Iterator[Job]:
    with ExitStack() as closing:
        yield Job(plan, parallelism, closing, handles, scratch)


words = st.tuples(st.sampled_from("abcdé"), st.integers(-9, 9))
lines = st.lists(words, max_size=3)
batches = st.tuples(st.integers(0, 4), st.lists(lines, min_size=1, max_size=6))
SCRATCHES: list[Opened] = [
    lambda directory: unbounded(),
    lambda directory: MemorySpillStore(1),
    lambda directory: MemorySpillStore(2),
    lambda directory: rocks(directory, 1),
]
epochs = st.lists(st.lists(st.tuples(batches, st.booleans()), max_size=6), min_size=1, max_size=4)
"""Each with what is read in it, and whether rows are delivered behind that."""
small_parts = st.fixed_dictionaries(
    {"keys_per_partial_aggregate": st.integers(1, 3), "partial_aggregate_buckets": st.integers(1, 3)}
)
runs = st.lists(st.tuples(st.integers(1, 3), epochs), min_size=1, max_size=3)
"""Each with its parallelism, and its epochs."""


def numbered() -> Plan:
    """All numbers of each letter in two phases, in the order in which they are put together."""
    return made(init=tuple, step=lambda acc, word: (*acc, word[1]), merge=tuple.__add__, state=tuple[int, ...])


@examples(25)
@given(runs, st.sampled_from(SCRATCHES), small_parts)
def test_each_key_has_one_output_an_epoch_in_whichever_run_and_however_many_keys_a_part_holds(
    runs: Any, scratch: Opened, limits: dict[str, int]
) -> None:
    """Numbers of a partition keep their order, whatever was set aside, put together, restored and rescaled."""
    wanted: dict[str, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
    updates, offsets = Counter[str](), Counter[int]()
    handles: list[StateHandle] = []
    identities: list[str] = []
    for parallelism, epochs in runs:
        with set_limits(**limits), job(numbered(), parallelism, handles, scratch) as running:
            running.offsets.update(offsets)
            parts = 0
            for reads in epochs:
                touched = set[tuple[int, str]]()
                for (partition, batch), delivered in reads:
                    lines = [[(letter, partition * 1000 + n) for letter, n in line] for line in batch]
                    running.read(partition, lines)
                    for letter, number in (word for line in lines for word in line):
                        wanted[letter][partition].append(number)
                        touched.add((partition % parallelism, letter))
                    if delivered:
                        running.deliver()
                parts += len(touched)
                letters = {letter for _, letter in touched}
                updates.update(letters)
                out = running.end_epoch()

                assert sorted(letter for letter, _ in out) == sorted(letters), "one output a key"
                assert {letter: of_partitions(acc) for letter, acc in out} == {each: wanted[each] for each in letters}
                assert running.sent == parts, "one accumulator a key, subtask and epoch, however many were set aside"
            assert {key: count for key, (count, _) in stored(running).items()} == updates
            handles, offsets = running.handles(), running.offsets
            identities += running.identities()

    assert len(set(identities)) == len(identities), "two outputs call themselves the same"


def of_partitions(numbers: Sequence[int]) -> dict[int, list[int]]:
    """Numbers as they came, by partition: they are a thousand apart, and below ten."""
    found: dict[int, list[int]] = defaultdict(list)
    for number in numbers:
        found[round(number / 1000)].append(number)
    return found


def test_a_skewed_key_crosses_the_exchange_once_a_subtask_and_epoch() -> None:
    with job(made(), 3) as running:
        for number in range(300):
            running.read(number % 3, [[("hot", 1)]])
        assert running.sent == 0
        assert running.end_epoch() == [("hot", (300, 300))]
        assert running.sent == 3


def test_state_moves_to_another_parallelism() -> None:
    with job(made(), 2) as first:
        first.read(0, [[("a", 1), ("b", 2)]])
        first.read(1, [[("a", 10), ("c", 3)]])
        first.end_epoch()
        handles = first.handles()

    with job(made(), 3, handles) as second:
        second.read(2, [[("a", 100)]])
        assert second.end_epoch() == [("a", (3, 111))]
        assert stored(second) == {"a": (2, (3, 111)), "b": (1, (1, 2)), "c": (1, (1, 3))}


def test_a_single_subtask_has_both_phases() -> None:
    assert run_local(made(), {"words": [[("a", 1), ("b", 2)], [("a", 3)]]})["out"] == [("a", (2, 4)), ("b", (1, 2))]


def test_it_is_one_by_one_without_merge() -> None:
    plan = made().without_partial_folds

    assert [type(node) for node in plan.nodes if isinstance(node, KeyByNode)] == [KeyByNode]
    assert run_local(plan, {"words": [[("a", 1)], [("a", 3)]]})["out"] == [("a", (1, 1)), ("a", (2, 4))]


def test_the_key_by_is_gone_unless_somebody_else_reads_it() -> None:
    pipeline = Pipeline("both")
    keyed = pipeline.source(ListSource([]), name="words").key_by(str, name="key")
    keyed.fold(name="sum", init=int, step=min, merge=min).sink(MemorySink(), name="out")
    assert [node.name for node in pipeline.plan().nodes] == ["words", "sum-partial", "sum", "out"]

    keyed.reduce(lambda _, value: value, name="last").sink(MemorySink(), name="all")
    plan = pipeline.plan()
    assert [node.name for node in plan.exchanges] == ["key", "sum-partial"]
    assert isinstance(plan.node("sum-partial"), PartialFoldNode)
    assert plan.node("sum-partial").inputs == ("words",)


def test_a_record_that_step_or_key_refuses_counts_nowhere() -> None:
    letters, out = MemorySink(), MemorySink()
    pipeline = Pipeline("refusing")
    numbers = pipeline.source(ListSource([]), name="numbers", on_error=DeadLetters(letters))
    keyed = numbers.key_by(lambda n: 12 // n)
    keyed.fold(name="sum", init=int, step=lambda acc, n: acc + 60 // (n - 2), merge=int.__add__).sink(out, name="out")

    got = run_local(pipeline, {"numbers": [3, 0, 4, 2, 3]})

    assert got["out"] == [(4, 120), (3, 30)]
    assert [(letter.raw.offset, letter.operator) for letter in got["numbers-dead-letters"]] == [
        (1, "sum-partial"),
        (3, "sum-partial"),
    ]


def test_what_is_behind_a_merge_can_send_its_record_aside() -> None:
    """The record of the last row has come along."""
    pipeline = Pipeline("behind")
    numbers = pipeline.source(ListSource([]), name="numbers", on_error=DeadLetters(MemorySink()))
    summed = numbers.key_by(lambda n: n % 2).fold(name="sum", init=int, step=int.__add__, merge=int.__add__)
    summed.map(lambda pair: 1 // pair[0]).sink(MemorySink(), name="out")

    got = run_local(pipeline, {"numbers": [2, 3, 4, 5]})

    assert got["out"] == [1]
    assert [letter.raw.offset for letter in got["numbers-dead-letters"]] == [2]


def at_most_ten(*given: Any) -> Any:
    """Both numbers together, or the key and the sum."""
    if sum(given) > 11:
        raise OverflowError("overflow")
    return given if given[0] == 1 else sum(given)


REJECTED_RESULTS = {
    "merge": (9, {"merge": at_most_ten}, [[(0, 7), (1, 5)], [(0, 3)]], [[(1, 7)], [(1, 10)]], ("sum", "words/1/0", 5)),
    "merge-of-what-was-spilled": (
        0, {"merge": at_most_ten}, [[(0, 7), (0, 5)], [(0, 3)]], [[(1, 7)], [(1, 10)]], ("sum-partial", "words/0/1", 5)
    ),
    "emit": (9, {"emit": at_most_ten}, [[(0, 7)], [(0, 5)], [(0, -5)]], [[(1, 7)], [], [(1, 7)]],
             ("sum", "words/0/1", 12)),
}  # fmt: skip
"""Keys in memory, functions, what each epoch reads of a partition, its outputs, and the only dead letter."""


@pytest.mark.parametrize("case", REJECTED_RESULTS)
def test_a_result_that_merge_or_emit_rejects_is_a_dead_letter_and_the_state_stays(case: str) -> None:
    """``merge`` puts a key's accumulators together in its owner, and before that those that were spilled."""
    most, functions, epochs, outputs, letter = REJECTED_RESULTS[case]
    pipeline = Pipeline("broken")
    numbers = pipeline.source(ListSource([]), name="words", on_error=DeadLetters(MemorySink()))
    fold: dict[str, Any] = {"init": int, "step": int.__add__, "merge": int.__add__, **functions}
    numbers.key_by(lambda n: 1).fold(name="sum", **fold).sink(MemorySink(), name="out")

    found = []
    with job(pipeline.plan(), 2, scratch=lambda directory: MemorySpillStore(most)) as running:
        for reads in epochs:
            for partition, number in reads:
                running.read(partition, [number])  # type: ignore[list-item]
            found.append(running.end_epoch())

    assert found == outputs
    letters = [rejected for batch in running.letters for rejected in batch.values]
    assert [(each.operator, each.raw.location, msgspec.json.decode(each.raw.value)) for each in letters] == [letter]
    assert all(each.is_result for each in letters)


@pytest.mark.parametrize("broken", ["merge", "emit"])
def test_what_merge_or_emit_raises_stops_the_job_without_dead_letters(broken: str) -> None:
    pipeline = Pipeline("broken")
    numbers = pipeline.source(ListSource([]), name="words")
    given: dict[str, Any] = {"merge": int.__add__, broken: at_most_ten}
    summed = numbers.key_by(lambda n: 1).fold(name="sum", init=int, step=int.__add__, **given)
    summed.sink(MemorySink(), name="out")

    with job(pipeline.plan(), 2) as running:
        for partition in (0, 1):
            running.read(partition, [7])  # type: ignore[list-item]
        with pytest.raises(PoisonRecord, match=r"words/[01]/0.*'sum'.*overflow.*on_error="):
            running.end_epoch()


@pytest.mark.parametrize("scratch", SCRATCHES)
def test_two_sources_in_a_union_keep_their_names(scratch: Opened) -> None:
    pipeline = Pipeline("union")
    one, two = (pipeline.source(ListSource([]), name=name) for name in ("one", "two"))
    keyed = one.union(two, name="both").key_by(lambda n: n % 3)
    keyed.fold(name="sum", init=int, step=int.__add__, merge=int.__add__).sink(MemorySink(), name="out")
    texts: list[str] = []
    plan = pipeline.plan()
    with ExitStack() as closing:
        running = Job(plan, 2, closing, scratch=scratch)
        running.chains[0, "one"].push("one", Batch([3, 4], range(2), ListOrigin("one", "one", 0, 0, [3, 4])))
        running.chains[1, "two"].push("two", Batch([6, 5], range(2), ListOrigin("two", "two", 1, 7, [6, 5])))
        assert sorted(running.end_epoch()) == [(0, 9), (1, 4), (2, 5)]
        texts = sorted(running.identities())

    assert texts == ["one/one/0/1/0.0/1", "two/two/1/7/1.0/1", "two/two/1/8/1.0/1"]


# ---------------------------------------------------------------- set aside


@examples(15)
@given(epochs, st.integers(1, 3), st.sampled_from(SCRATCHES[1:]), small_parts)
def test_rows_do_not_tell_whether_they_were_set_aside(
    epochs: Any, parallelism: int, scratch: Opened, limits: dict[str, int]
) -> None:
    made_of: list[Any] = []
    for each, sizes in ((SCRATCHES[0], {}), (scratch, limits)):
        with set_limits(**sizes), job(made(), parallelism, scratch=each) as running:
            out = []
            for reads in epochs:
                for (partition, batch), _ in reads:
                    running.read(partition, batch)
                out.append(sorted(running.end_epoch()))
            made_of.append((out, sorted(running.identities()), stored(running)))

    assert made_of[0] == made_of[1]


KEYS = ["a", "", "é" * 300, 0, -1, 2**63 - 1, -(2**63), b"", b"\xff\xff", ("a", 1), ("a", (b"b", -1)), ()]


def sums_of_themselves(pipeline: Pipeline, source: Any, **changes: Any) -> Plan:
    fold: dict[str, Any] = {"init": int, "step": lambda acc, _: acc + 1, "merge": int.__add__, **changes}
    source.key_by(lambda value: value).fold(name="sum", **fold).sink(MemorySink(), name="out")
    return pipeline.plan()


def test_keys_of_all_types_are_themselves_again() -> None:
    pipeline = Pipeline("keys")
    plan = sums_of_themselves(pipeline, pipeline.source(ListSource([]), name="words"))
    with job(plan, 1, scratch=lambda directory: rocks(directory, 3)) as running:
        for _ in range(2):
            for key in KEYS:
                running.read(0, [key])
        out = running.end_epoch()

    assert len(out) == len(KEYS)
    assert {(type(key), key): count for key, count in out} == {(type(key), key): 2 for key in KEYS}


def partial_fold(scratch: SpillStore) -> PartialFoldOperator:
    """The first phase of the sums alone, opened."""
    pipeline = Pipeline("alone")
    plan = sums_of_themselves(pipeline, pipeline.source(ListSource([]), name="t"))
    operator = build_operator(plan.node("sum-partial"))
    assert isinstance(operator, PartialFoldOperator)
    operator.open(
        OperatorContext(
            "sum-partial", no_state, no_reject, writes_dead_letters=lambda source: True, scratch=lambda: scratch
        )
    )
    return operator


def no_state(descriptor: object) -> Any:
    raise AssertionError("a partial fold asked for state")


def no_reject(batch: Batch[Any], index: int, error: Exception) -> None:
    raise error


def test_the_record_of_the_last_row_is_set_aside_with_it(tmp_path: Path) -> None:
    operator = partial_fold(rocks(tmp_path / "s", 1))
    last: dict[int, RawRecord] = {}
    found: dict[int, RawRecord] = {}
    with closing(operator):
        for offset in range(40):
            key = None if offset % 3 else b"k"
            record = RawRecord("t", 3, offset, offset - 1, key, b"v", (("h", b"1"), ("none", None)))
            last[offset % 7] = record
            operator.process(Batch([offset % 7], range(1), RawOrigin("t", [record])))
        for batch in operator.flush():
            found.update(zip(batch.keys or (), map(batch.origin.raw, batch.origin_rows), strict=True))

    assert {key: replace(raw, headers=tuple(raw.headers)) for key, raw in found.items()} == last


def test_many_keys_come_in_many_batches() -> None:
    """What is put together at once is bounded, and no key is in two of them."""
    operator = partial_fold(MemorySpillStore(20))
    with closing(operator), set_limits(keys_per_partial_aggregate=10, partial_aggregate_buckets=7):
        for start in range(0, 90, 10):
            values = [*range(start, start + 10), *range(10)]
            operator.process(Batch(values, range(20), ListOrigin("t", "t", 0, start, values)))
        found = [list(zip(batch.keys or (), batch.values, strict=True)) for batch in operator.flush()]

    assert max(map(len, found)) == 10
    assert sorted(each for part in found for each in part) == [(key, 10 if key < 10 else 1) for key in range(90)]


@pytest.mark.parametrize("changes", [{"init": object, "step": lambda acc, _: acc}, {"init": lambda: [()]}])
def test_an_accumulator_that_cannot_be_set_aside_is_named(changes: dict[str, Any]) -> None:
    """As at a checkpoint: what would come back as something else is refused."""
    pipeline = Pipeline("objects")
    fold = {"step": lambda acc, _: acc, "merge": lambda one, _: one, **changes}
    plan = sums_of_themselves(pipeline, pipeline.source(ListSource([]), name="words"), **fold)
    with (
        job(plan, 1, scratch=lambda directory: MemorySpillStore(1)) as running,
        pytest.raises(PoisonRecord, match=r"'sum-partial'.*its accumulator cannot be stored.*state="),
    ):
        running.read(0, ["a", "b"])  # type: ignore[list-item]


# ---------------------------------------------------------------- local


def test_local_sums_stay_with_the_subtask_that_read_them() -> None:
    with job(made(local=True), 2) as running:
        running.read(0, [[("a", 1), ("b", 2)]])
        running.read(1, [[("c", 3), ("a", 5)]])
        assert sorted(running.end_epoch()) == [("a", (1, 1)), ("a", (1, 5)), ("b", (1, 2)), ("c", (1, 3))]
        assert running.sent == 0
        assert len(set(running.identities())) == 4


def parted() -> tuple[Plan, list[StateHandle]]:
    """A local job of two subtasks with one key each, and its state."""
    with job(made(local=True), 2) as running:
        running.read(0, [[("a", 1)]])
        running.read(1, [[("b", 2)]])
        running.end_epoch()
        return running.plan, running.handles()


@pytest.mark.parametrize("parallelism", [1, 2])
def test_local_state_continues_where_it_was_or_in_one_place(parallelism: int) -> None:
    plan, handles = parted()
    with job(plan, parallelism, handles) as again:
        again.read(1, [[("b", 40)]])
        again.read(0, [[("a", 30)]])
        assert sorted(again.end_epoch()) == [("a", (2, 31)), ("b", (2, 42))]


def test_local_state_is_refused_at_another_parallelism() -> None:
    plan, handles = parted()
    with (
        pytest.raises(ConfigError, match="stored by 2 workers.*parallelism=2 .*or omit local=True"),
        job(plan, 3, handles),
    ):
        pass


def test_state_by_key_group_cannot_become_local_but_in_one_place() -> None:
    with job(made(), 2) as running:
        running.read(0, [[("a", 1), ("b", 2)]])
        running.end_epoch()
        handles = running.handles()
    with (
        pytest.raises(ConfigError, match="stored without local=True.*parallelism=1 "),
        job(made(local=True), 2, handles),
    ):
        pass
    with job(made(local=True), 1, handles) as again:
        again.read(0, [[("a", 1)]])
        assert again.end_epoch() == [("a", (2, 2))]


@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_without_local_each_key_goes_to_its_owner(parallelism: int) -> None:
    _, handles = parted()
    with job(made(), parallelism, handles) as again:
        again.read(2, [[("a", 30), ("b", 40)]])
        assert sorted(again.end_epoch()) == [("a", (2, 31)), ("b", (2, 42))]
        assert all("local" not in str(handle.states) for handle in again.handles())


def test_a_key_in_two_subtasks_is_not_made_one_by_chance() -> None:
    with job(made(local=True), 2) as running:
        running.read(0, [[("a", 1)]])
        running.read(1, [[("a", 2)]])
        running.end_epoch()
        handles = running.handles()

    with pytest.raises(ConfigError, match="one key in two workers"), job(made(), 2, handles):
        pass


def test_a_savepoint_keeps_local_state_by_subtask(tmp_path: Path) -> None:
    plan, handles = parted()
    with savepoints.draft_savepoint(tmp_path / "savepoint") as stage:
        kept = write_canonical_state(handles, STORAGE, stage)
        for handle in kept:
            for ref in handle.files:
                stage.files.fetch(ref, tmp_path / "file")
                STORAGE.upload(tmp_path / "file", ref.name)
                (tmp_path / "file").unlink()

    assert [handle.key_groups for handle in kept] == [handle.key_groups for handle in handles]
    with job(plan, 2, kept) as again:
        again.read(0, [[("a", 30)]])
        again.read(1, [[("b", 40)]])
        assert sorted(again.end_epoch()) == [("a", (2, 31)), ("b", (2, 42))]


def test_explain_says_what_is_vouched_for() -> None:
    text = explain(made(local=True))

    assert "you guarantee that all records of a key are in one partition" in text
    assert "one output per key and epoch" in text
    assert "you guarantee" not in explain(made())


# ---------------------------------------------------------------- refused plans


def test_local_is_refused_where_nobody_can_vouch_for_it() -> None:
    pipeline = Pipeline("spread")
    spread = pipeline.source(ListSource([]), name="numbers").rebalance(name="spread")
    spread.key_by(str, local=True).reduce(max, name="last").sink(MemorySink(), name="out")

    with pytest.raises(PlanError, match=r"rebalance 'spread' before it.*\n.*local=True"):
        pipeline.plan()


@pytest.mark.parametrize("changes", [{"local": True}, {"merge": int.__add__}, {"local": True, "merge": int.__add__}])
def test_neither_goes_into_a_loop(changes: dict[str, Any]) -> None:
    local, merging = changes.pop("local", False), changes

    def body(numbers: Any) -> Any:
        keyed = numbers.key_by(str, name="key", values=int, local=local)
        summed = keyed.fold(name="sum", init=int, step=int.__add__, emit=lambda _, n: n, **merging)
        return summed.filter(lambda n: n < 9, name="again"), summed.filter(lambda n: n >= 9, name="done")

    pipeline = Pipeline("loop")
    pipeline.source(ListSource([]), name="numbers").iterate(body, name="round", values=int).sink(
        MemorySink(), name="out"
    )

    with pytest.raises(PlanError, match="in a loop|into a loop"):
        pipeline.plan()


# ---------------------------------------------------------------- time to live


@pytest.mark.parametrize("parallelism", [1, 3])
def test_a_key_begins_anew_when_its_time_is_up(parallelism: int) -> None:
    with job(made(ttl=Ttl(3600)), parallelism) as running:
        running.read(0, [[("a", 1), ("b", 1)], [("a", 2)]])
        assert sorted(running.end_epoch()) == [("a", (2, 3)), ("b", (1, 1))]
        running.now += 3_599_999
        running.read(1, [[("a", 4)]])
        assert running.end_epoch() == [("a", (3, 7))]
        running.now += 1
        running.read(2, [[("a", 8)], [("b", 8)]])
        assert sorted(running.end_epoch()) == [("a", (4, 15)), ("b", (1, 8))]
        running.handles()
        running.now += 3_600_000
        running.handles()
        assert [list(backend._store.rows(STATE).scan()) for backend in running.backends] == [[]] * parallelism
        assert [parse_provenance(text).update for text in running._texts] == [None] * 5


def test_what_expires_before_the_epoch_ends_still_comes_out_at_its_end() -> None:
    with job(made(ttl=Ttl(1)), 2) as running:
        running.read(0, [[("a", 1), ("b", 2)]])
        for segment in running.plan.segments:
            for n in range(running.parallelism):
                running.now += 1_000  # nothing that was merged is younger when it is emitted
                running.chains[n, segment.heads[0]].flush()
            running.deliver()

        assert sorted(value for batch in running._epoch for value in batch.values) == [("a", (1, 1)), ("b", (1, 2))]
