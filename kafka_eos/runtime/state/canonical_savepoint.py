"""Savepoints of a decided epoch: the same rows in one format, for every backend and parallelism.

    pending = begin_savepoint(storage, manifest, target)    at once: retention can no longer delete the files
    pending.write_savepoint()                               reads, converts and publishes; slow, on any thread

Rule: only an epoch whose output is committed becomes a savepoint. Otherwise a job started from it would produce that
output again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from kafka_eos._util import failpoints
from kafka_eos.abc.state import InFlightRows, StateHandle
from kafka_eos.abc.storage import CheckpointStorage, FileRef
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import KeyGroup
from kafka_eos.core.json_values import Json
from kafka_eos.core.limits import LIMITS
from kafka_eos.runtime.state import memory_store as memory
from kafka_eos.runtime.state.key_groups import GROUP_BYTES, MAX_KEY_GROUPS, key_group_range, subtask_of
from kafka_eos.runtime.state.local_keys import is_local
from kafka_eos.runtime.state.row_store import Row
from kafka_eos.runtime.state.schema_evolution import ATTRIBUTES, WATERMARKS, split_description
from kafka_eos.runtime.state.stored_rows import open_handles
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.job_records import Manifest, index_files
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.savepoint_files import Savepoint, SavepointDraft, SavepointFiles

RowSelector: TypeAlias = Callable[[str, Mapping[str, Json], Iterator[Row]], Iterator[Row]]
"""Gets an operator, the description of one of its states, and the rows of that state."""


def write_savepoint(storage: CheckpointStorage, manifest: Manifest, target: Path) -> Savepoint:
    """Write the savepoint of a committed epoch. Raises ConfigError if ``target`` is taken."""
    return begin_savepoint(storage, manifest, target).write_savepoint()


def write_epoch(storage: CheckpointStorage, job: str, epoch: int, target: Path) -> Savepoint:
    """Write a savepoint of the stored epoch of that number, whether or not the job runs; the job is not contacted.

    Raises ConfigError, without a savepoint, if there is no such epoch, or the job deleted it before it could be pinned.
    """
    manifest = savepoints.load_committed(storage, job, epoch)
    try:
        pinned = begin_savepoint(storage, manifest, target)
    except CorruptCheckpoint as error:
        # Retention deletes a manifest before its files: if the manifest exists, the file was lost in another way.
        if manifest.name in storage.list(paths.MANIFESTS):
            raise
        raise savepoints.dropped_error(job, epoch) from error
    return pinned.write_savepoint()


class PendingSavepoint(Struct, frozen=True):
    """A savepoint in progress: its files are kept until it is written or closed.

    Call ``write_savepoint`` or ``close``: until then its parts are beside ``target``.
    """

    manifest: Manifest
    draft: SavepointDraft
    _cleanup: ExitStack

    def write_savepoint(self) -> Savepoint:
        """Write the savepoint of a committed epoch. Raises CorruptCheckpoint or OSError, without a savepoint."""
        with self._cleanup:
            source = SavepointFiles(self.draft.work, ordered=False)
            operators = write_canonical_state(self.manifest.states, source, self.draft)
            in_flight = copy_in_flight(self.manifest.in_flight, source, self.draft)
            savepoint = Savepoint(
                job=self.manifest.job,
                id=savepoints.new_id(),
                epoch=self.manifest.epoch,
                term=self.manifest.term,
                created_at=savepoints.now_ms(),
                plan=self.manifest.plan,
                max_key_groups=self.manifest.max_key_groups,
                sources=self.manifest.sources,
                operators=operators,
                in_flight=in_flight,
                identity=self.manifest.identity,
            )
            self.draft.publish(savepoint)
        return savepoint

    def close(self) -> None:
        """Discard the savepoint."""
        self._cleanup.close()


def begin_savepoint(storage: CheckpointStorage, manifest: Manifest, target: Path) -> PendingSavepoint:
    """Begin a savepoint: link or copy its files, so that retention cannot delete them. Raises ConfigError if ``target``
    exists.

    Call it while the epoch is retained. It is quick where files can be linked; otherwise they are copied.
    """
    with ExitStack() as stack:
        draft = stack.enter_context(savepoints.draft_savepoint(target))
        keep = draft.work / paths.SAVEPOINT_FILES
        keep.mkdir(mode=0o700)
        for sha256, ref in index_files(manifest.states, manifest.in_flight).items():
            _keep(storage, ref, keep / sha256)
        failpoints.hit("savepoint.pinned")
        return PendingSavepoint(manifest, draft, stack.pop_all())


def _keep(storage: CheckpointStorage, ref: FileRef, target: Path) -> None:
    if isinstance(storage, LocalStorage):
        try:
            if files.link(storage.root / paths.shared_name(ref.sha256), target):
                return
        except FileNotFoundError:
            pass  # ``fetch`` names the file
    storage.fetch(ref, target)


# ---------------------------------------------------------------- the canonical format


def copy_in_flight(
    in_flight: Iterable[InFlightRows], source: CheckpointStorage, draft: SavepointDraft
) -> tuple[InFlightRows, ...]:
    """Copy in-flight rows to a savepoint unchanged; return them with their files there."""

    def copy_file(ref: FileRef) -> FileRef:
        path = draft.work / "frames"
        source.fetch(ref, path)
        copied = draft.files.upload(path, ref.name)
        path.unlink()
        return copied

    return tuple(replace(rows, files=tuple(map(copy_file, rows.files))) for rows in in_flight)


def keep_rows(operator: str, described: Mapping[str, Json], rows: Iterator[Row]) -> Iterator[Row]:
    """Return all rows of a state."""
    return rows


def write_canonical_state(
    handles: Iterable[StateHandle],
    source: CheckpointStorage,
    draft: SavepointDraft,
    select: RowSelector = keep_rows,
) -> tuple[StateHandle, ...]:
    """Write state rows to a savepoint in canonical format; rows stay in their key groups.

    ``select`` returns those of the rows of a state that are written, in their order.
    """
    by_operator = itertools.groupby(sorted(handles, key=attrgetter("operator")), key=attrgetter("operator"))
    return tuple(
        handle for operator, found in by_operator for handle in _operator(operator, list(found), source, draft, select)
    )


def _operator(
    operator: str,
    handles: Sequence[StateHandle],
    source: CheckpointStorage,
    draft: SavepointDraft,
    select: RowSelector,
) -> Iterator[StateHandle]:
    if len(handles) > 1 and any(map(is_local, handles)):
        # Only these handles say which subtask needs which of their keys.
        for handle in handles:
            (alone,) = _operator(operator, [handle], source, draft, select)
            yield replace(alone, key_groups=handle.key_groups)
        return
    size = 0 if any(map(is_local, handles)) else sum(file.size for handle in handles for file in handle.files)
    parts = min(max(1, -(-size // LIMITS.savepoint_part_bytes)), MAX_KEY_GROUPS)
    described = _described(handles)
    stored: list[list[FileRef]] = [[] for _ in range(parts)]
    with open_handles(handles, source, draft.work) as rows:
        for state in sorted(described):
            chosen = select(
                operator, described[state], itertools.chain.from_iterable(each.scan(state) for each in rows)
            )
            for part, ref in _state(state, chosen, draft, parts):
                stored[part].append(ref)
    states = tuple(described[name] for name in sorted(described))
    for part, refs in enumerate(stored):
        groups = key_group_range(part, parts)
        bounds = groups.start, groups.stop - 1
        yield StateHandle(operator, memory.KIND, bounds, tuple(refs), states)


def _described(handles: Iterable[StateHandle]) -> dict[str, Mapping[str, Json]]:
    """Return the stored description of each state by name, with merged attributes and watermarks of all subtasks."""
    handles = list(handles)
    times: dict[str, list[Json]] = {}
    for state in (state for handle in handles for state in handle.states if WATERMARKS in state):
        ranges: Any = state[WATERMARKS]
        times.setdefault(str(state["name"]), []).extend(ranges)
    found: dict[str, Mapping[str, Json]] = {}
    highest: dict[str, dict[str, int]] = {}
    for state, attributes in (split_description(state) for handle in handles for state in handle.states):
        name = str(state["name"])
        known = highest.setdefault(name, {})
        known.update({name: max(value, known.get(name, value)) for name, value in attributes.items()})
        found[name] = {**state, ATTRIBUTES: dict[str, Json](known)} if known else state
    for name, ranges in times.items():
        found[name] = {**found[name], WATERMARKS: ranges}
    return found


def _state(state: str, rows: Iterable[Row], draft: SavepointDraft, parts: int) -> Iterator[tuple[int, FileRef]]:
    """Store the rows of one state, one file per part with rows."""

    def part_of(row: Row) -> int:
        return 0 if parts == 1 else subtask_of(_group(row), parts)

    for part, found in itertools.groupby(rows, key=part_of):
        path = draft.work / memory.rows_file(state)
        with files.create_writer(path) as target:
            memory.write_rows(target, found)
        yield part, draft.files.upload(path, path.name)
        path.unlink()


def _group(row: Row) -> KeyGroup:
    return KeyGroup(int.from_bytes(row[0][:GROUP_BYTES], "big"))
