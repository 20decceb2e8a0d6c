"""The start of a job from a savepoint: its positions and its state become epoch 0.

Rule: a job starts once. ``origin.json`` records the savepoint, so that the same command line, repeated after a crash or
a stop, resumes the job; with another savepoint, or none, it is a different job.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec import Struct

from kafka_eos._util.failpoints import hit
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.terms import now_ms
from kafka_eos.core.errors import ConfigError, CorruptCheckpoint
from kafka_eos.core.ids import Epoch, JobIdentity
from kafka_eos.core.json_values import Positions
from kafka_eos.plan import Plan, TableNode
from kafka_eos.protocol import source_dependencies as bootstrap
from kafka_eos.protocol.incarnations import SavepointEpoch
from kafka_eos.runtime.state.key_groups import check_key_groups
from kafka_eos.runtime.state.schema_evolution import DEFINITION, ensure_same_definition
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.savepoint_files import Savepoint, SavepointFiles, SavepointOrigin


class SavepointStart(Struct, frozen=True):
    """A savepoint that a job starts from."""

    path: Path
    savepoint: Savepoint

    @classmethod
    def read(cls, path: Path) -> SavepointStart:
        """Read a savepoint. Raise ConfigError if it is not usable, CorruptCheckpoint if it is damaged."""
        found = savepoints.read_savepoint(path)
        check_key_groups(f"savepoint {path}", found.max_key_groups)
        return cls(path.absolute(), found)

    @property
    def successor_of(self) -> frozenset[JobIdentity]:
        """Return the incarnations that this start continues."""
        identity = self.savepoint.identity
        return frozenset() if identity is None else frozenset({JobIdentity(identity)})

    @property
    def epoch(self) -> SavepointEpoch | None:
        """Return the savepoint's epoch; None if it was not created from a job."""
        identity, epoch = self.savepoint.identity, self.savepoint.epoch
        return None if identity is None else SavepointEpoch(JobIdentity(identity), Epoch(epoch))

    def find_unused(self, plan: Plan) -> list[str]:
        """Return the names of stored operators, sources and exchanges that the plan does not have."""
        return find_unused(plan, self.savepoint.operators, self.savepoint.sources, self.savepoint.in_flight)

    def import_files(self, storage: JobStorage, plan: Plan) -> tuple[tuple[StateHandle, ...], tuple[InFlightRows, ...]]:
        """Copy the files that the plan uses into the job's storage, and record the origin.

        Raises CorruptCheckpoint, naming the file, if one is damaged.
        """
        source = SavepointFiles(self.path)
        states, in_flight = select_used(plan, self.savepoint.operators, self.savepoint.in_flight)
        for ref in records.index_files(states, in_flight).values():
            found = None
            with suppress(FileNotFoundError):
                found = storage.upload(source.path_of(ref), ref.name)
            if found != ref:
                source.check_content(ref)  # raises an error that describes the damage
                raise CorruptCheckpoint(f"{ref.sha256} ({ref.name}) of savepoint {self.path} changed while it was read")
        hit("savepoint.restored")
        storage.delete(paths.ORIGIN)  # written by a start that decided nothing
        records.publish(
            storage, SavepointOrigin(job=plan.name, savepoint=self.savepoint.id, path=str(self.path), at=now_ms())
        )
        return states, in_flight


def ensure_same_savepoint(storage: JobStorage, job: str, start_from: Path) -> str:
    """Raise ConfigError if the job did not start from this savepoint.

    If it did start from the savepoint at this path, the savepoint is no longer needed: then return the reason why it
    could not be read, or "".
    """
    try:
        origin = records.load(storage, SavepointOrigin, paths.ORIGIN, job)
    except FileNotFoundError:
        origin = None
    began = "without a savepoint" if origin is None else f"with savepoint {origin.savepoint} ({origin.path})"
    try:
        wanted = savepoints.read_savepoint(start_from)
    except (ConfigError, CorruptCheckpoint, OSError) as error:
        if origin is not None and origin.path == str(start_from.absolute()):
            return str(error)
        raise _begun(job, began, f"the savepoint at {start_from} cannot be compared with it: {error}") from error
    if origin is None or origin.savepoint != wanted.id:
        raise _begun(job, began, f"it cannot start again from {start_from} ({wanted.id})")
    return ""


def _begun(job: str, began: str, why: str) -> ConfigError:
    return ConfigError(
        f"job {job!r} has already begun, {began}, and {why}. To start from that savepoint, "
        "give the job another checkpoint_dir (or the pipeline another name); to resume the "
        "job, leave the savepoint out"
    )


def select_used(
    plan: Plan, states: Iterable[StateHandle], in_flight: Iterable[InFlightRows]
) -> tuple[tuple[StateHandle, ...], tuple[InFlightRows, ...]]:
    """Return the state and in-flight rows that the plan uses."""
    stateful, exchanges = _stateful(plan), _exchanges(plan)
    return (
        tuple(handle for handle in states if handle.operator in stateful),
        tuple(rows for rows in in_flight if rows.exchange in exchanges),
    )


def find_unused(
    plan: Plan, states: Iterable[StateHandle], sources: Iterable[str], in_flight: Iterable[InFlightRows]
) -> list[str]:
    """Return the names of stored operators, sources and exchanges that the plan does not have."""
    operators = {handle.operator for handle in states} - _stateful(plan)
    exchanges = {rows.exchange for rows in in_flight} - _exchanges(plan)
    return sorted(operators | exchanges | (set(sources) - {source.name for source in plan.sources}))


def ensure_same_definitions(plan: Plan, states: Iterable[StateHandle]) -> None:
    """Raise ConfigError if stored state has other windows, joins or tables than the plan has under that name."""
    declared = {node.name: node.definition for node in plan.nodes if node.definition is not None}
    for handle in states:
        for state in handle.states if handle.operator in declared else ():
            if DEFINITION in state:
                where = f"state {state['name']!r} of operator {handle.operator!r}"
                ensure_same_definition(where, state, {DEFINITION: declared[handle.operator]})


def ensure_tables_come_first(plan: Plan, known: Collection[str], in_flight: Collection[InFlightRows]) -> None:
    """Raise ConfigError if the plan has a new table, and in-flight rows that might be joined before it is read."""
    new = {source.name for source in plan.sources if isinstance(source, TableNode)}.difference(known)
    joins = frozenset(join for table in new for join in plan.joins_of_tables[table])
    early = sorted({rows.exchange for rows in in_flight if joins & plan.find_descendants(rows.exchange)})
    if early:
        raise ConfigError(
            f"the pipeline has a new table {', '.join(map(repr, sorted(new)))}, and the checkpoint contains "
            f"in-flight rows of exchange {', '.join(map(repr, early))}, which would be joined before the table is "
            "read. Start the old pipeline once more and stop it cleanly (kafka-eos stop, or SIGTERM), which leaves "
            "no in-flight rows except those in a loop: wait until the loop is empty. Then start the new pipeline"
        )


def ensure_joins_know_their_tables(plan: Plan, known: Mapping[str, Positions], states: Collection[StateHandle]) -> None:
    """Raise ConfigError if a new join uses a table that the job has already read, at least in part.

    Those rows are not read again, so the join would not find them.
    """
    held = {handle.operator for handle in states}
    for table, joins in plan.joins_of_tables.items():
        late = [join for join in sorted(joins - held) if not bootstrap.has_seen_all(join, known.get(table, {}))]
        if late:
            raise ConfigError(
                f"join {', '.join(map(repr, late))} is new, but the job has already read source {table!r} of its "
                "table: the join would not find what was read before. Declare another table for it, of the same "
                "source under a new name, which is read from its beginning before the stream continues. If nothing "
                "reads the old table any more, start once with --allow-dropped-state"
            )


def _stateful(plan: Plan) -> set[str]:
    return {node.name for node in plan.nodes if node.stateful}


def _exchanges(plan: Plan) -> set[str]:
    return {node.name for node in plan.exchanges if node.exchange_codec is not None}


def drop_unused(history: History, allowed: bool, what: str, names: Sequence[str]) -> None:
    """Continue without the state that the plan does not use, if that is allowed; otherwise raise ConfigError."""
    if names and not allowed:
        raise _refusal(what, names)
    if names:
        history.append_event("dropped", what=what, names=list(names))


def _refusal(what: str, names: Iterable[str]) -> ConfigError:
    """Return the error that explains how to keep the stored state of ``names``, and how to drop it."""
    return ConfigError(
        f"{what} contains state of {', '.join(map(repr, names))}, but the pipeline has no stateful operator, source "
        "or exchange of that name. Restore the old name: under another, a source would be read again from its "
        "beginning, and in-flight rows of an exchange would be lost. Or drop the state for good with "
        "--allow-dropped-state (setting allow_dropped_state)"
    )
