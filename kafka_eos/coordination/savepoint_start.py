"""Begin a job with a savepoint: its positions and its state become epoch 0.

Rule: a job begins once. ``origin.json`` says with which savepoint, so that the same command line, given again after a
crash or a stop, goes on where the job is; with another savepoint, or none, it is another job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.state import InFlight, StateHandle
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.terms import now_ms
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import JobIdentity
from kafka_eos.core.json_values import Positions
from kafka_eos.plan import Plan, Table
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.runtime.state.key_groups import check_key_groups
from kafka_eos.runtime.state.schema_evolution import DEFINITION, ensure_same_definition
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.savepoint_files import Origin, Savepoint, SavepointFiles


@dataclass(frozen=True, slots=True)
class Start:
    """The savepoint in directory ``path``, as the beginning of a job."""

    path: Path
    savepoint: Savepoint

    @classmethod
    def read(cls, path: Path) -> Start:
        """Raises ConfigError if there is no savepoint that can be used, CorruptCheckpoint if it is damaged."""
        found = savepoints.read(path)
        check_key_groups(f"savepoint {path}", found.max_key_groups)
        return cls(path.absolute(), found)

    @property
    def heir_of(self) -> frozenset[JobIdentity | None]:
        """Lives that this start continues: the savepoint's, if it was made of a job."""
        identity = self.savepoint.identity
        return frozenset() if identity is None else frozenset({JobIdentity(identity)})

    def unclaimed(self, plan: Plan) -> list[str]:
        """Names of operators, sources and exchanges that it holds something of and that the plan does not have."""
        return unclaimed(plan, self.savepoint.operators, self.savepoint.sources, self.savepoint.in_flight)

    def bring(self, storage: JobStorage, plan: Plan) -> tuple[tuple[StateHandle, ...], tuple[InFlight, ...]]:
        """Store what the plan has use for with the job's files, and note the origin; returns state and rows under way.

        Raises CorruptCheckpoint, naming the file, if one is not what was written.
        """
        source = SavepointFiles(self.path)
        states, in_flight = claimed(plan, self.savepoint.operators, self.savepoint.in_flight)
        for ref in records.named_files(states, in_flight).values():
            found = None
            with suppress(FileNotFoundError):
                found = storage.upload(source.path_of(ref), ref.name)
            if found != ref:
                source.check(ref)  # says what is wrong with it
                raise CorruptCheckpoint(f"{ref.sha256} ({ref.name}) of savepoint {self.path} changed while it was read")
        hit("savepoint.restored")
        storage.delete(paths.ORIGIN)  # of a start that decided nothing
        records.publish(storage, Origin(job=plan.name, savepoint=self.savepoint.id, path=str(self.path), at=now_ms()))
        return states, in_flight


def ensure_same(storage: JobStorage, job: str, start_from: Path) -> str:
    """ConfigError if a job that has begun already began with something else than this savepoint.

    A job that began with the one at that very place needs it no longer: then the answer is why it could not be read,
    else nothing.
    """
    try:
        origin = records.load(storage, Origin, paths.ORIGIN, job)
    except FileNotFoundError:
        origin = None
    began = "without a savepoint" if origin is None else f"with savepoint {origin.savepoint} ({origin.path})"
    try:
        wanted = savepoints.read(start_from)
    except (ConfigError, CorruptCheckpoint, OSError) as error:
        if origin is not None and origin.path == str(start_from.absolute()):
            return str(error)
        raise _begun(job, began, f"what is at {start_from} cannot be compared with that: {error}") from error
    if origin is None or origin.savepoint != wanted.id:
        raise _begun(job, began, f"it cannot begin again with {start_from} ({wanted.id})")
    return ""


def _begun(job: str, began: str, why: str) -> ConfigError:
    return ConfigError(
        f"job {job!r} has begun already, {began}, and {why}. To start from that savepoint, give the job another "
        "checkpoint_dir (or the pipeline another name); to go on where the job is, leave the savepoint out"
    )


def claimed(
    plan: Plan, states: Iterable[StateHandle], in_flight: Iterable[InFlight]
) -> tuple[tuple[StateHandle, ...], tuple[InFlight, ...]]:
    """What the plan has use for: state of its operators, and rows under way to its exchanges."""
    stateful, exchanges = _stateful(plan), _exchanges(plan)
    return (
        tuple(handle for handle in states if handle.operator in stateful),
        tuple(rows for rows in in_flight if rows.exchange in exchanges),
    )


def unclaimed(
    plan: Plan, states: Iterable[StateHandle], sources: Iterable[str], in_flight: Iterable[InFlight]
) -> list[str]:
    """Names of operators with state, of sources with positions, of exchanges with rows, that the plan does not have."""
    operators = {handle.operator for handle in states} - _stateful(plan)
    exchanges = {rows.exchange for rows in in_flight} - _exchanges(plan)
    return sorted(operators | exchanges | (set(sources) - {source.name for source in plan.sources}))


def ensure_same_definitions(plan: Plan, states: Iterable[StateHandle]) -> None:
    """ConfigError if a state is held for other windows, another join or table, than the plan has under its name."""
    declared = {node.name: node.definition for node in plan.nodes if node.definition is not None}
    for handle in states:
        for state in handle.states if handle.operator in declared else ():
            if DEFINITION in state:
                where = f"state {state['name']!r} of operator {handle.operator!r}"
                ensure_same_definition(where, state, {DEFINITION: declared[handle.operator]})


def ensure_tables_come_first(plan: Plan, known: Collection[str], in_flight: Collection[InFlight]) -> None:
    """ConfigError if the plan has a table that the job did not have, and rows under way that might come before it."""
    new = {source.name for source in plan.sources if isinstance(source, Table)}.difference(known)
    joins = frozenset(join for table in new for join in plan.joins_of_tables[table])
    early = sorted({rows.exchange for rows in in_flight if joins & plan.below(rows.exchange)})
    if early:
        raise ConfigError(
            f"the pipeline has a new table {', '.join(map(repr, sorted(new)))}, and the checkpoint that the job goes "
            f"on with holds rows on their way through {', '.join(map(repr, early))}, which would be joined before it "
            "is read. Start the old pipeline once more and stop it cleanly (kafka-eos stop, or SIGTERM), which leaves "
            "none but those that go round in a loop: let it come to rest before. Then start the new one"
        )


def ensure_joins_know_their_tables(plan: Plan, known: Mapping[str, Positions], states: Collection[StateHandle]) -> None:
    """ConfigError if a join would look into a table that the job has read in part, or all of it, before there was it.

    What was read is not read again, so rows would not find it.
    """
    held = {handle.operator for handle in states}
    for table, joins in plan.joins_of_tables.items():
        late = [join for join in sorted(joins - held) if not bootstrap.has_got_all(join, known.get(table, {}))]
        if late:
            raise ConfigError(
                f"join {', '.join(map(repr, late))} is new, and the job has read of source {table!r} already, which it "
                "looks into: it would not find what was read before. Declare another table for it, of the same source "
                "under a new name (and if nothing reads the old one any more, start once with --allow-dropped-state): "
                "that is read from its beginning before the stream goes on"
            )


def _stateful(plan: Plan) -> set[str]:
    return {node.name for node in plan.nodes if node.stateful}


def _exchanges(plan: Plan) -> set[str]:
    return {node.name for node in plan.exchanges if node.wire is not None}


def drop(history: History, allowed: bool, what: str, names: Sequence[str]) -> None:
    """Go on without what is stored under names that the plan has not, if that is allowed; else ConfigError."""
    if names and not allowed:
        raise _refusal(what, names)
    if names:
        history.write("dropped", what=what, names=list(names))


def _refusal(what: str, names: Iterable[str]) -> ConfigError:
    """Says how to keep what is stored of ``names``, and how to drop it."""
    return ConfigError(
        f"{what} holds state of {', '.join(map(repr, names))}, but the pipeline has no stateful operator, source or "
        "exchange of that name. Give it its old name back: under another, a source would be read again from its "
        "beginning, and rows on their way to an exchange would be lost. Or drop it for good with "
        "--allow-dropped-state (setting allow_dropped_state)"
    )
