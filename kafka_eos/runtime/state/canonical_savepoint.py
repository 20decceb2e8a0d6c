"""Make a savepoint of a decided epoch: the same rows in one format, whatever backend and parallelism wrote them.

    pinned = pin(storage, manifest, target)    at once: retention cannot take the files away any more
    pinned.write()                             reads, converts and publishes; may take long, on any thread

Rule: only an epoch whose output is committed becomes a savepoint, or that output would be made again from it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from operator import attrgetter
from pathlib import Path
from typing import Any

from kafka_eos._util import failpoints
from kafka_eos.abc.state import InFlight, StateHandle
from kafka_eos.abc.storage import CheckpointStorage, FileRef
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import KeyGroup
from kafka_eos.core.json_values import Json
from kafka_eos.core.limits import LIMITS
from kafka_eos.runtime.state import memory_store as memory
from kafka_eos.runtime.state.key_groups import GROUP_BYTES, MAX_KEY_GROUPS, key_group_range, subtask_of
from kafka_eos.runtime.state.local_keys import is_local
from kafka_eos.runtime.state.row_store import Row
from kafka_eos.runtime.state.schema_evolution import MARKS, WATERMARKS, split
from kafka_eos.runtime.state.stored_rows import StoredRows, opened
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import savepoint_files as savepoints
from kafka_eos.storage.job_records import Manifest, named_files
from kafka_eos.storage.job_storage import LocalStorage
from kafka_eos.storage.savepoint_files import Savepoint, SavepointDraft, SavepointFiles


def write(storage: CheckpointStorage, manifest: Manifest, target: Path) -> Savepoint:
    """Make the savepoint ``target`` of a committed epoch of a job. ConfigError if ``target`` is taken."""
    return pin(storage, manifest, target).write()


def write_epoch(storage: CheckpointStorage, job: str, epoch: int, target: Path) -> Savepoint:
    """As ``write``, of the stored epoch of that number, whether the job runs or not; nothing is asked of it.

    ConfigError if there is no such epoch, or the job dropped it before it could be pinned; then there is no savepoint.
    """
    manifest = savepoints.committed(storage, job, epoch)
    try:
        pinned = pin(storage, manifest, target)
    except CorruptCheckpoint as error:
        # Retention drops a manifest before its files: one that is there has lost a file in another way.
        if manifest.name in storage.list(paths.MANIFESTS):
            raise
        raise savepoints.dropped(job, epoch) from error
    return pinned.write()


@dataclass(frozen=True)
class Pinned:
    """A savepoint that is begun. ``write`` or ``close`` it: until then its parts lie beside ``target``."""

    manifest: Manifest
    draft: SavepointDraft
    _cleanup: ExitStack

    def write(self) -> Savepoint:
        """Finish it; durable on return. Raises CorruptCheckpoint, OSError; then there is no savepoint."""
        with self._cleanup:
            source = SavepointFiles(self.draft.work, ordered=False)
            operators = canonical(self.manifest.states, source, self.draft)
            carry(self.manifest.in_flight, source, self.draft)
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
                in_flight=self.manifest.in_flight,
                identity=self.manifest.identity,
            )
            self.draft.publish(savepoint)
        return savepoint

    def close(self) -> None:
        """Give it up."""
        self._cleanup.close()


def pin(storage: CheckpointStorage, manifest: Manifest, target: Path) -> Pinned:
    """Begin a savepoint: give the files of the epoch second names beside ``target``. ConfigError if it is taken.

    Call it while the epoch is retained. Quick where files can be linked; elsewhere they are copied.
    """
    with ExitStack() as stack:
        draft = stack.enter_context(savepoints.staged(target))
        keep = draft.work / paths.SAVEPOINT_FILES
        keep.mkdir(mode=0o700)
        for sha256, ref in named_files(manifest.states, manifest.in_flight).items():
            _keep(storage, ref, keep / sha256)
        failpoints.hit("savepoint.pinned")
        return Pinned(manifest, draft, stack.pop_all())


def _keep(storage: CheckpointStorage, ref: FileRef, target: Path) -> None:
    if isinstance(storage, LocalStorage):
        try:
            if files.link(storage.root / paths.shared_name(ref.sha256), target):
                return
        except FileNotFoundError:
            pass  # ``fetch`` names it
    storage.fetch(ref, target)


# ---------------------------------------------------------------- the one format


def carry(in_flight: Iterable[InFlight], source: CheckpointStorage, draft: SavepointDraft) -> None:
    """Store rows that are under way between subtasks into the draft, as they are."""
    for ref in (file for rows in in_flight for file in rows.files):
        path = draft.work / "frames"
        source.fetch(ref, path)
        draft.files.upload(path, ref.name)
        path.unlink()


def canonical(
    handles: Iterable[StateHandle], source: CheckpointStorage, draft: SavepointDraft
) -> tuple[StateHandle, ...]:
    """Store the rows of ``handles``, all in ``source``, into the draft; returns handles for them, sorted.

    Rows stay in their key groups.
    """
    by_operator = itertools.groupby(sorted(handles, key=attrgetter("operator")), key=attrgetter("operator"))
    return tuple(
        handle for operator, found in by_operator for handle in _operator(operator, list(found), source, draft)
    )


def _operator(
    operator: str, handles: Sequence[StateHandle], source: CheckpointStorage, draft: SavepointDraft
) -> Iterator[StateHandle]:
    if len(handles) > 1 and any(map(is_local, handles)):
        # Nobody else can tell which subtask needs which of their keys.
        for handle in handles:
            (alone,) = _operator(operator, [handle], source, draft)
            yield replace(alone, key_groups=handle.key_groups)
        return
    size = 0 if any(map(is_local, handles)) else sum(file.size for handle in handles for file in handle.files)
    parts = min(max(1, -(-size // LIMITS.savepoint_part_bytes)), MAX_KEY_GROUPS)
    described = _described(handles)
    stored: list[list[FileRef]] = [[] for _ in range(parts)]
    with opened(handles, source, draft.work) as rows:
        for state in sorted(described):
            for part, ref in _state(state, rows, draft, parts):
                stored[part].append(ref)
    states = tuple(described[name] for name in sorted(described))
    for part, refs in enumerate(stored):
        groups = key_group_range(part, parts)
        bounds = groups.start, groups.stop - 1
        yield StateHandle(operator, memory.KIND, bounds, tuple(refs), states)


def _described(handles: Iterable[StateHandle]) -> dict[str, Mapping[str, Json]]:
    """What is stored of each state, by name, with the highest of the subtasks' marks, and the watermarks of all."""
    handles = list(handles)
    times: dict[str, list[Json]] = {}
    for told in (state for handle in handles for state in handle.states if WATERMARKS in state):
        ranges: Any = told[WATERMARKS]
        times.setdefault(str(told["name"]), []).extend(ranges)
    found: dict[str, Mapping[str, Json]] = {}
    highest: dict[str, dict[str, int]] = {}
    for state, marks in (split(state) for handle in handles for state in handle.states):
        name = str(state["name"])
        known = highest.setdefault(name, {})
        known.update({mark: max(value, known.get(mark, value)) for mark, value in marks.items()})
        found[name] = {**state, MARKS: dict[str, Json](known)} if known else state
    for name, ranges in times.items():
        found[name] = {**found[name], WATERMARKS: ranges}
    return found


def _state(
    state: str, sources: Iterable[StoredRows], draft: SavepointDraft, parts: int
) -> Iterator[tuple[int, FileRef]]:
    """Store the rows of one state, a file a part that has rows."""

    def part_of(row: Row) -> int:
        return 0 if parts == 1 else subtask_of(_group(row), parts)

    rows = itertools.chain.from_iterable(source.scan(state) for source in sources)
    for part, found in itertools.groupby(rows, key=part_of):
        path = draft.work / memory.rows_file(state)
        with files.writer(path) as target:
            memory.write_rows(target, found)
        yield part, draft.files.upload(path, path.name)
        path.unlink()


def _group(row: Row) -> KeyGroup:
    return KeyGroup(int.from_bytes(row[0][:GROUP_BYTES], "big"))
