"""The stored facts about the epochs of a job: the positions of each, and the state of some.

The ledger of epochs has the positions of every committed epoch. State is in the checkpoints that retention has kept,
and in savepoints.

Rule: an epoch that cannot be replayed is refused with what is stored, and how to keep more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kafka_eos.coordination import job_history
from kafka_eos.coordination.terms import gather_from_outside
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import EpochId, SplitId
from kafka_eos.core.json_values import Position
from kafka_eos.protocol.recovery import decided_epochs
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS
from kafka_eos.savepoints import Snapshot
from kafka_eos.storage import epoch_ledger
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.epoch_ledger import LedgerEntry, entry_of
from kafka_eos.storage.job_records import Manifest
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.savepoint_files import Savepoint, new_id

START = "start"
"""Instead of a savepoint: the beginning of the job, without state."""


@dataclass(frozen=True)
class StoredEpochs:
    """The epochs of a job, as far as something is stored about them."""

    storage: JobStorage
    place: Path | str
    entries: Mapping[int, LedgerEntry]
    """The facts of each epoch, by its number; the positions among them."""
    manifests: Mapping[int, EpochId]
    """The epochs whose state is stored."""

    @classmethod
    def read(cls, storage: JobStorage, job: str, place: Path | str) -> StoredEpochs:
        """Read the records of a job, which may be running. Raises CorruptCheckpoint."""
        facts = gather_from_outside(storage, job)
        valid = [epoch for epoch in decided_epochs(facts) if epoch in facts.manifests]
        loaded = (records.load(storage, Manifest, paths.manifest_name(epoch), job) for epoch in valid)
        entries = {manifest.epoch: entry_of(manifest) for manifest in loaded}
        entries |= {epoch.epoch.n: entry for epoch, entry in epoch_ledger.read(storage).items()}
        if not entries:
            raise ConfigError(f"job {job!r} has not decided any epoch yet: there is nothing to replay")
        return cls(storage, place, dict(sorted(entries.items())), {epoch.epoch.n: epoch for epoch in valid})

    @property
    def newest(self) -> int:
        return max(self.entries)

    def find_epoch(self, record: str) -> int:
        """Return the epoch that read a record, given as topic, partition and offset; or the one that will read it.

        Raises ConfigError if no epoch has.
        """
        split, _, offset = record.rpartition("/")
        if not offset.isdigit():
            raise ConfigError(f"--record {record}: give topic, partition and offset of an input record: orders/0/17")
        found = [
            number
            for number, entry in self.entries.items()
            for positions in entry.sources.values()
            if split in positions and _is_read(int(offset), positions[SplitId(split)])
        ]
        known = {name for positions in self.entries[self.newest].sources.values() for name in positions}
        if not found and split in known:
            return self.newest + 1
        if not found or min(found) == min(self.entries):
            raise ConfigError(
                f"no known epoch of the job has read {record}: the job's records begin with epoch {min(self.entries)}, "
                f"and it reads {', '.join(sorted(known)) or 'nothing'}"
            )
        return min(found)

    def open_state(self, epoch: int) -> Snapshot:
        """Return the state of a stored epoch."""
        name = paths.manifest_name(self.manifests[epoch])
        job = records.decode(Manifest, name, self.storage.read(name))
        return Snapshot(self.place, self.storage, job)

    def find_start(self, job: str, epoch: int, begin: str | None) -> Snapshot:
        """Return the newest stored state before an epoch, or that of the job's first epoch, in which nothing was read.

        ``begin``: the path of a savepoint, or ``START`` for the job's first epoch. Raises ConfigError if there is no
        such state.
        """
        if epoch not in self.entries and epoch != self.newest + 1:
            raise ConfigError(
                f"epoch {epoch} is unknown: the job's records have the epochs {_format_ranges([*self.entries])}, and "
                f"{self.newest + 1} is the one that was not decided yet"
            )
        if begin == START:
            return self._begin_empty(job, epoch)
        if begin is not None:
            return self._open_savepoint(epoch, Path(begin))
        before = [number for number in self.manifests if number < epoch]
        if not before and 0 not in self.entries:
            kept = _format_ranges([*self.manifests])
            raise ConfigError(
                f"the state before epoch {epoch} is not stored any more: the checkpoints that are kept are those of "
                f"epochs {kept}, so epochs from {min(self.manifests, default=self.newest) + 1} on can be replayed. "
                "Replay from a savepoint: --from SAVEPOINT. For the next time, the setting retained_checkpoints keeps "
                "more than 2"
            )
        return self.open_state(max(before)) if before else self._begin_empty(job, epoch)

    def _begin_empty(self, job: str, epoch: int) -> Snapshot:
        """Return the state of the job's first epoch, in which nothing was read."""
        first = self.entries.get(0)
        if first is None or epoch == 0:
            raise ConfigError(
                f"--from start: nothing tells where the job began to read, because its records begin with epoch "
                f"{min(self.entries)}. If it started from a savepoint, give that one"
                if first is None
                else "epoch 0 only records where the job begins to read: it has no input"
            )
        content = Savepoint(
            job=job,
            id=new_id(),
            epoch=0,
            term=first.id.term.n,
            created_at=first.at,
            plan=first.plan,
            max_key_groups=MAX_KEY_GROUPS,
            sources=dict(first.sources),
            operators=(),
        )
        return Snapshot(self.place, self.storage, content)

    def _open_savepoint(self, epoch: int, path: Path) -> Snapshot:
        snapshot = Snapshot.open(path)
        if not isinstance(snapshot.content, Savepoint):
            raise ConfigError(f"{path} is the directory of a job; --from takes a savepoint")
        if snapshot.epoch >= epoch or snapshot.epoch not in self.entries:
            raise ConfigError(
                f"savepoint {path} is of epoch {snapshot.epoch} of job {snapshot.job!r}: to replay epoch {epoch}, give "
                "a savepoint of an earlier epoch of this job"
            )
        return snapshot

    def list_between(self, start: int, epoch: int) -> list[LedgerEntry]:
        """Return the epochs after ``start`` up to ``epoch``, as far as they are decided."""
        return [entry for number, entry in self.entries.items() if start < number <= epoch]

    def list_changed_files(self, entry: LedgerEntry, files: Mapping[str, str]) -> list[str]:
        """Return the files of the pipeline that were others when the job ran this epoch.

        ``files``: the digests of the files that are loaded now.
        """
        code: Any = {}
        ran: Mapping[str, str] = {}
        for event in job_history.read_events(self.storage):
            if event.get("event") == "started":
                code = event.get("code", {})
            elif event.get("event") == "recovered" and event.get("term") == entry.id.term.n:
                ran = code
        return sorted(name for name, digest in files.items() if name in ran and ran[name] != digest)


def _is_read(offset: int, end: Position) -> bool:
    """Return whether a record is before the end of an epoch, by its offset or its row in a file."""
    limit = end.get("offset", end.get("row"))
    return end.get("done") is True or (isinstance(limit, int) and offset < limit)


def _format_ranges(numbers: list[int]) -> str:
    """Return numbers in ascending order as text: ``0 to 4, 7``."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][-1] + 1:
            parts[-1].append(number)
        else:
            parts.append([number])
    return ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[-1]}" for part in parts) or "none"
