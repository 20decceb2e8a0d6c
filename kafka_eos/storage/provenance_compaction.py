"""Compaction of provenance files while their job runs, so that their number does not grow with its epochs.

Any file may be packed at any time: it is identified by its content, not by its object. ``provenance_packs`` decides
which files are merged; this module reads them, publishes the pack, and then deletes them.
Rule: a file is deleted only when a durable pack contains it. After a crash a file may be in both, with the same
content; the next round continues. Nothing that the job does depends on packing. A file that cannot be packed now is
reported and packed later. It neither keeps other files from being packed nor delays the end of a round, during which no
epoch begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kafka_eos._util import failpoints
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.limits import LIMITS
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import provenance_files as provenance
from kafka_eos.storage import provenance_packs as packs
from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.object_names import ProvenanceFile, ProvenancePack

MAX_CONCURRENT: Final = 16
"""Most files that are read at the same time."""


class ProvenancePacker:
    """Merger of provenance files into packs while the job runs. It passes failures to ``notice`` as messages."""

    def __init__(self, storage: JobStorage, notice: Callable[[str], None]) -> None:
        self._storage, self._notice = storage, notice
        self._forgotten = LIMITS.epochs_per_packing
        """Epochs dropped since the last round. The first round finds files that earlier coordinators left."""
        self._damaged: set[ProvenanceFile | ProvenancePack] = set()
        self._strays: set[str] = set()
        self._failed: dict[ProvenanceFile | ProvenancePack, None] = {}
        """Files whose last packing failed, longest ago first. They are tried after all other files, in this order,
        so that they do not prevent other files from being packed."""

    def on_epochs_dropped(self, epochs: int) -> None:
        """Count dropped epochs; after every ``Limits.epochs_per_packing`` pack files and compress full logs.

        Raises no errors of the storage.
        """
        self._forgotten += epochs
        if self._forgotten < LIMITS.epochs_per_packing:
            return
        self._forgotten = 0
        try:
            self._storage.compress_logs()
        except OSError as error:
            self._notice(f"full files of logs cannot be compressed: {error}. The job continues and retries later")
        try:
            if self.pack():
                self._forgotten = LIMITS.epochs_per_packing
        except OSError as error:
            self._notice(f"files of provenance cannot be packed: {error}. The job continues and packs them later")

    def pack(self) -> bool:
        """Pack up to ``packs_per_round`` times. Return whether there may be more to pack.

        Raises OSError; then some files are packed, and nothing is lost.
        """
        made = 0
        for tried, some in enumerate(self._groups()):
            if tried == LIMITS.packs_per_round:
                return made > 0
            if not (found := self._read_all(some)):
                return False  # the store is away, or another coordinator packs
            made += self._merge(found)
        return False

    def _groups(self) -> Iterator[Sequence[ProvenanceFile | ProvenancePack]]:
        """Yield the groups to merge: single files, then packs, also those just created, then files that failed
        before.
        """
        alone = packs.groups(file for file in self._undamaged() if isinstance(file, ProvenanceFile))
        known = frozenset(self._failed)
        yield from (some for some in alone if known.isdisjoint(some))
        more = packs.groups(file for file in self._undamaged() if isinstance(file, ProvenancePack))
        yield from (some for some in more if known.isdisjoint(some))
        turn = {file: place for place, file in enumerate(self._failed)}
        tried: list[Sequence[ProvenanceFile | ProvenancePack]] = [*alone, *more]
        again = [some for some in tried if not known.isdisjoint(some)]
        yield from sorted(again, key=lambda some: min(turn.get(file, len(turn)) for file in some))

    def _undamaged(self) -> list[ProvenanceFile | ProvenancePack]:
        """List the objects that are not known to be damaged."""
        return [file for file in provenance.list_provenance(self._storage, self._stray) if file not in self._damaged]

    def _stray(self, name: str) -> None:
        if name not in self._strays:
            self._strays.add(name)
            self._notice(f"{paths.foreign_object_error(name)}. The job continues and leaves the object unchanged")

    def _read_all(
        self, files: Sequence[ProvenanceFile | ProvenancePack]
    ) -> dict[ProvenanceFile | ProvenancePack, Mapping[str, bytes]]:
        """Read these objects, and report those that fail."""
        with ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="pack") as pool:
            read = dict(zip(files, pool.map(self._read, files), strict=True))
        failed = {file: error for file, error in read.items() if isinstance(error, OSError)}
        if new := [file for file in failed if file not in self._failed]:
            which = paths.provenance_name(new[0]) + (f" and {len(new) - 1} more" if len(new) > 1 else "")
            self._notice(f"{which} cannot be packed: {failed[new[0]]}. The job continues and retries later")
        self._fail(files, failed)
        return {file: held for file, held in read.items() if held is not None and not isinstance(held, OSError)}

    def _fail(
        self, tried: Iterable[ProvenanceFile | ProvenancePack], failed: Iterable[ProvenanceFile | ProvenancePack]
    ) -> None:
        """Record which of the tried files failed just now; the others no longer count as failed."""
        for file in tried:
            self._failed.pop(file, None)
        self._failed.update(dict.fromkeys(failed))

    def _merge(self, found: Mapping[ProvenanceFile | ProvenancePack, Mapping[str, bytes]]) -> bool:
        """Merge these objects into one pack. Return whether the pack was created."""
        if len(found) < 2:
            return False
        held = {sha256: content for each in found.values() for sha256, content in each.items()}
        pack, content = packs.encode(*packs.span(list(found)), held)
        try:
            if not self._published(pack, content):
                return False
            failpoints.hit("packing.published")
            self._storage.delete_all([paths.provenance_name(file) for file in found if file != pack])
        except OSError:
            self._fail(found, found)
            raise
        failpoints.hit("packing.deleted")
        return True

    def _published(self, pack: ProvenancePack, content: bytes) -> bool:
        """Return whether the pack exists and is undamaged."""
        try:
            self._storage.publish(paths.provenance_name(pack), content)
        except FileExistsError:
            # An interrupted round created it from the same files. Files that are deleted now must be in it.
            return bool(self._read_all([pack]))
        return True

    def _read(self, file: ProvenanceFile | ProvenancePack) -> Mapping[str, bytes] | OSError | None:
        """Return the files in an object, or the error; None if it is gone or damaged. Damage is reported once."""
        try:
            return provenance.read_object(self._storage, file)
        except FileNotFoundError:
            return None  # packed by another coordinator
        except CorruptCheckpoint as error:
            self._damaged.add(file)
            self._notice(f"{error}: it is left as it is")
            return None
        except OSError as error:
            return error
