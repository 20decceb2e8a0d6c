"""One trial of a sink: builds it from its importable factory, acts as its engine, and reports violations.

A committable takes the same path as in production. It is encoded as JSON and decoded again before its commit, and
``protocol.commit.authorize`` issues the permit after all committables were probed.
"""

from __future__ import annotations

import importlib
import json
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, TypeVar

from msgspec.structs import asdict

from kafka_eos.abc.committer import (
    AtomicCommitter,
    CommitOutcome,
    CommitPermit,
    Committable,
    Committer,
    Spread,
)
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.incarnation import SupportsRegistration
from kafka_eos.abc.services import Services
from kafka_eos.abc.sink import Sink, Writer
from kafka_eos.abc.storage import FileRef
from kafka_eos.core.errors import KafkaEosError
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch
from kafka_eos.protocol.commit import CommitAuthorized, authorize
from kafka_eos.testing.list_source import ListOrigin
from kafka_eos.testing.method_names import find_wrong_names
from kafka_eos.testing.multisets import subtract

T = TypeVar("T")

ROWS: tuple[Json, ...] = tuple({"id": n, "text": f"row {n} ✓"} for n in range(40))
_LAST_TERM = 1000


class ContractBroken(AssertionError):
    """A sink or a source breaks its contract. The message states what was observed instead."""


@dataclass(frozen=True, slots=True)
class SinkUnderTest:
    """A sink that can be built in any process, with a function that reads back what it made visible.

    ``factory``           ``"module:function"``; called as ``function(**arguments)``, returns the sink
    ``arguments``         JSON values
    ``read_back``         all visible rows, decoded to JSON values, in the order of writing for one writer
    ``rows``              at least 12 different JSON values to write
    ``settings``          what the engine would pass to connectors, e.g. ``bootstrap_servers``
    ``visible_within``    seconds that ``read_back`` may lag behind a commit
    ``stable_offset``     True for a log that is read up to its last stable offset, like Kafka's topics: committed rows
                          may be hidden until everything written before them is committed or aborted
    ``single_process``    True for a sink in memory: checks that need a second process are skipped
    ``remove_visible``    removes everything visible, as a reader may do when it is done: moves the files, deletes the
                          rows. None if readers of this sink cannot; the check that needs it is skipped
    """

    factory: str
    arguments: Mapping[str, Json]
    read_back: Callable[[], Sequence[Any]]
    rows: Sequence[Json] = ROWS
    settings: Mapping[str, Json] = field(default_factory=dict)
    visible_within: float = 0.0
    stable_offset: bool = False
    single_process: bool = False
    remove_visible: Callable[[], None] | None = None


class SinkHarness:
    """Drives one sink against a fresh target, as an engine would.

    Leaving it closes all writers and aborts their output.
    """

    def __init__(self, target: SinkUnderTest, job: str | None = None, seed: int = 0) -> None:
        self.target, self.rows = target, target.rows
        self.seed = seed
        self.job = job or f"contract-{uuid.uuid4().hex[:12]}"
        self._incarnations: set[tuple[str, JobIdentity | None]] = {(self.job, None)}
        self._closing = ExitStack()

    def __enter__(self) -> SinkHarness:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._closing.close()
        for job, identity in list(self._incarnations):
            last = self.context(_LAST_TERM, job, identity)
            committer = self._build().committer(last)
            committer.abort_leftovers(last)
            committer.close()

    # ------------------------------------------------------------ building

    def sink(self) -> Sink[Any]:
        """Return a new sink object, as another process would build it."""
        return expect_contract(self._build(), Sink)

    def _build(self) -> Sink[Any]:
        module, _, function = self.target.factory.partition(":")
        built: Sink[Any] = getattr(importlib.import_module(module), function)(**self.target.arguments)
        return built

    def context(self, term: int, job: str | None = None, identity: JobIdentity | None = None) -> JobContext:
        self._incarnations.add((job or self.job, identity))
        return JobContext(job or self.job, Term(term), self.target.settings, identity)

    def writer(
        self,
        term: int = 1,
        *,
        job: str | None = None,
        identity: JobIdentity | None = None,
        subtask: int = 0,
        operator: str = "out",
        first: int = 1,
        services: Services | None = None,
    ) -> Writer[Any]:
        """Open a writer whose first rows belong to epoch ``first``."""
        sink, ctx = self.sink(), self.context(term, job, identity)
        sink.check(ctx)
        if identity is not None and isinstance(committer := self.committer(term, job), SupportsRegistration):
            committer.register(ctx)  # as the engine does, before anything is written
        writer = sink.writer(TaskContext(ctx, subtask, 2, operator, services or Services(), Epoch(first)))
        self._closing.callback(writer.discard)
        return expect_contract(writer, Writer)

    def committer(self, term: int = 1, job: str | None = None, identity: JobIdentity | None = None) -> Committer:
        committer = self.sink().committer(self.context(term, job, identity))
        self._closing.callback(committer.close)
        return expect_contract(committer, Committer)

    def batch(self, start: int, stop: int) -> Batch[Any]:
        """Return the rows ``start`` to ``stop`` of the target's rows."""
        values = list(self.rows[start:stop])
        return Batch(values, range(len(values)), ListOrigin("in", "list", 0, start, values))

    # ------------------------------------------------------------ acting

    def prepare(self, writer: Writer[Any], epoch: EpochId, start: int, stop: int) -> list[Committable]:
        """Write some rows and take them through seal and pre-commit."""
        writer.write(self.batch(start, stop))
        committables = through_json(writer.seal(epoch)())
        expect(bool(committables), f"an epoch with {stop - start} rows must give a committable; seal()() gave none")
        return committables

    def permit(self, epoch: EpochId, committer: Committer, committables: Sequence[Committable]) -> CommitPermit:
        """Return the permit to commit, as the coordinator would get it."""
        decision = authorize(epoch, committer.probe_all(committables), 0.0)
        if not isinstance(decision, CommitAuthorized):
            raise ContractBroken(f"newly prepared output must be committable; probing led to {decision}")
        return decision.permit

    def commit(self, epoch: EpochId, committables: Sequence[Committable], committer: Committer | None = None) -> None:
        """Commit all for the first time, with a committer that never saw their writer."""
        committer = committer or self.committer()
        permit = self.permit(epoch, committer, committables)
        for outcome in committer.commit_all(permit, committables):
            expect(outcome is CommitOutcome.COMMITTED, f"a first commit must return COMMITTED, not {outcome}")

    # ------------------------------------------------------------ looking

    def expect_visible(self, rows: Iterable[Json], when: str, *, any_order: bool = False) -> None:
        """Check that ``read_back`` returns exactly ``rows``, each as often as listed, and in that order without
        ``any_order``.
        """
        expected = list(rows)
        self.expect_visible_of_each([[each] for each in expected] if any_order else [expected], when)

    def expect_visible_of_each(
        self, groups: Sequence[Sequence[Json]], when: str, *, hidden: Collection[Json] = ()
    ) -> None:
        """Check that ``read_back`` returns exactly the rows of all groups: each group in order, groups in any order.

        ``hidden``: rows that may be missing.
        """
        expected = [row for group in groups for row in group]
        needed = [row for row in expected if row not in hidden]
        deadline = time.monotonic() + self.target.visible_within
        seen = list(self.target.read_back())
        while subtract(needed, seen) and time.monotonic() < deadline:
            time.sleep(0.02)
            seen = list(self.target.read_back())
        missing, extra = subtract(needed, seen), subtract(seen, expected)
        expect(not missing, f"{when}: rows are missing from what is visible: {missing}")
        expect(not extra, f"{when}: rows are visible that must not be, or are visible twice: {extra}")
        for group in groups:
            found, due = [row for row in seen if row in group], [row for row in group if row in seen]
            expect(found == due, f"{when}: rows are visible in the wrong order: {found}, not {due}")

    def expect_staged(self, committer: Committer, some: bool, when: str) -> None:
        """Check whether ``list_staged`` lists something. Like ``read_back`` it may lag behind a commit."""
        deadline = time.monotonic() + self.target.visible_within
        found = list(committer.list_staged(self.context(1)))
        while bool(found) is not some and time.monotonic() < deadline:
            time.sleep(0.02)
            found = list(committer.list_staged(self.context(1)))
        expect(bool(found) is some, f"{when}: staged must list {'something' if some else 'nothing'}, not {found}")


@contextmanager
def name_violation(name: str, check: Callable[..., None]) -> Iterator[None]:
    """Prefix a violation in the block with the name and claim of its check."""
    try:
        yield
    except (ContractBroken, KafkaEosError) as error:
        problem = error if isinstance(error, ContractBroken) else f"{type(error).__name__}: {error}"
        raise ContractBroken(f"{name}: {check.__doc__}\n  {problem}") from error


def expect(condition: bool, otherwise: str) -> None:
    if not condition:
        raise ContractBroken(otherwise)


def expect_contract(built: T, contract: type) -> T:
    """Return the object. Raise ContractBroken unless its class inherits the contract, with the contract's names."""
    cls: type = type(built)
    expect(isinstance(built, contract), f"{cls.__name__} is not a subclass of {contract.__name__} in kafka_eos.abc")
    expect(not (wrong := find_wrong_names(cls)), "; ".join(wrong))
    return built


def calls(committer: Committer, committables: Sequence[Committable]) -> list[Sequence[Committable]]:
    """Return the committables of each call of the committer."""
    if isinstance(committer, AtomicCommitter):
        return [committables] if committables else []
    return [[each] for each in committables]


def epoch_id(epoch: int, term: int = 1) -> EpochId:
    return EpochId(Epoch(epoch), Term(term))


def through_json(committables: Iterable[Committable]) -> list[Committable]:
    """Encode committables as JSON and decode them again, as the manifest does."""
    return [from_json(json.loads(_dumps(each))) for each in committables]


def to_json(committable: Committable) -> dict[str, Json]:
    return {
        "scope": committable.scope,
        "payload": dict(committable.payload),
        "records": committable.records,
        "by_sink": dict(committable.by_sink),
        "provenance": None if committable.provenance is None else asdict(committable.provenance),
        "spread": {sink: asdict(spread) for sink, spread in committable.spread.items()},
    }


def from_json(data: Mapping[str, Any]) -> Committable:
    spread = {sink: Spread(**found) for sink, found in data["spread"].items()}
    kept = None if data["provenance"] is None else FileRef(**data["provenance"])
    return Committable(data["scope"], data["payload"], data["records"], data["by_sink"], spread, kept)


def _dumps(committable: Committable) -> str:
    try:
        return json.dumps(to_json(committable), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ContractBroken(f"a committable must be JSON: {error}: {committable}") from error
