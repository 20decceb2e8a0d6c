"""Provenance files, which state the origin of output: stored before their epoch is decided, kept as long as the ledger.

A file is stored alone at first and in a pack later. The pack is durable before the single file is deleted. So a reader
that does not find a file searches again until two consecutive listings are equal: then the file is missing.
Rule: a file must match the reference in its committable; otherwise CorruptCheckpoint names it. Objects of other
programs are never read, packed or deleted, and do not stop a job.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from kafka_eos.abc.committer import Committable, UnstoredCommittable
from kafka_eos.abc.storage import CheckpointStorage, FileRef
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch
from kafka_eos.core.limits import LIMITS
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import provenance_packs as packs
from kafka_eos.storage.object_names import ProvenanceFile, ProvenanceObject, ProvenancePack


def store_provenance(storage: CheckpointStorage, epoch: Epoch, committable: Committable) -> Committable:
    """Store the committable's provenance file; return the committable as stored in a manifest.

    ``epoch``: the epoch that wrote the file. Raises OSError if the file cannot be stored.
    """
    if not isinstance(committable, UnstoredCommittable) or committable.provenance is None:
        return committable
    # The name is a digest of the content, so an existing object was left by a call that failed.
    with suppress(FileExistsError):
        storage.publish(provenance_name_of(committable.provenance, epoch), committable.content)
    fields = committable.scope, committable.payload, committable.records, committable.by_sink, committable.spread
    return Committable(*fields, committable.provenance)


def provenance_name_of(ref: FileRef, epoch: Epoch) -> str:
    """Return the object name of a provenance file outside any pack."""
    return paths.provenance_name(ProvenanceFile(epoch, ref.size, ref.sha256))


def ignore_foreign(name: str) -> None:
    """Ignore objects that are not this package's."""


def list_provenance(
    storage: CheckpointStorage, stray: Callable[[str], None] = ignore_foreign
) -> tuple[ProvenanceObject, ...]:
    """List all stored provenance objects. Foreign names are passed to ``stray``, except hidden ones.

    Hidden names belong to the file system and disappear by themselves: NFS renames a file that is deleted while open.
    """
    try:
        names = storage.list(paths.PROVENANCE)
    except FileNotFoundError:
        return ()  # no epoch has stored any
    found = list[ProvenanceObject]()
    for name in names:
        try:
            found.append(paths.parse_provenance_name(name))
        except CorruptCheckpoint:
            if not name.startswith(f"{paths.PROVENANCE}/."):
                stray(name)
    return tuple(found)


def read_object(storage: CheckpointStorage, file: ProvenanceObject) -> Mapping[str, bytes]:
    """Return the files that a provenance object holds, by SHA-256.

    Raises FileNotFoundError if it is absent, CorruptCheckpoint if it is damaged.
    """
    name = paths.provenance_name(file)
    content = storage.read(name)
    if isinstance(file, ProvenancePack):
        try:
            return packs.decode(file, content)
        except ValueError as error:
            raise CorruptCheckpoint(f"{name}: {error}") from error
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise CorruptCheckpoint(f"{name}: the content does not match its checksum")
    return {file.sha256: content}


class ProvenanceReader:
    """A reader of the provenance files of one store, single or in packs."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._files: tuple[ProvenanceObject, ...] = ()
        self._alone: Mapping[str, ProvenanceObject] = {}
        self._packs: Sequence[ProvenancePack] = ()
        self._open: OrderedDict[ProvenancePack, Mapping[str, bytes]] = OrderedDict()

    def load(self, ref: FileRef, epoch: Epoch) -> bytes:
        """Return the content of a file; ``epoch``: the epoch that committed it.

        Raises CorruptCheckpoint, naming the file, if it is absent or does not match the reference.
        """
        while True:
            damaged: list[CorruptCheckpoint] = []
            for file in self._places(ref, epoch):
                try:
                    content = self._opened(file).get(ref.sha256)
                except FileNotFoundError:
                    # It was packed and deleted meanwhile: the pack is in the new listing, and ranks high.
                    if self._refresh():
                        break
                    continue
                except CorruptCheckpoint as error:
                    damaged.append(error)
                    continue
                if content is not None:
                    return content
            else:
                if not self._refresh():
                    raise damaged[0] if damaged else missing_error(ref, epoch)

    def _places(self, ref: FileRef, epoch: Epoch) -> Iterator[ProvenanceObject]:
        """Yield the objects that may hold a file, the likeliest first: an epoch commits files of its own or an earlier
        epoch."""
        if ref.sha256 in self._alone:
            yield self._alone[ref.sha256]
        yield from rank_packs(self._packs, epoch)

    def _opened(self, file: ProvenanceObject) -> Mapping[str, bytes]:
        if not isinstance(file, ProvenancePack):
            return read_object(self._storage, file)
        if file not in self._open:
            found = read_object(self._storage, file)
            if len(self._open) >= LIMITS.open_packs:
                self._open.popitem(last=False)
            self._open[file] = found
        self._open.move_to_end(file)
        return self._open[file]

    def _refresh(self) -> bool:
        """List the objects again; return whether the listing changed."""
        before, self._files = self._files, list_provenance(self._storage)
        self._alone = {file.sha256: file for file in self._files if not isinstance(file, ProvenancePack)}
        self._packs = [file for file in self._files if isinstance(file, ProvenancePack)]
        return self._files != before


def rank_packs(some: Iterable[ProvenancePack], epoch: Epoch) -> list[ProvenancePack]:
    """Return the packs that may hold the output of an epoch, the likeliest first."""
    return sorted((pack for pack in some if pack.first <= epoch), key=lambda pack: max(0, epoch.n - pack.last.n))


def missing_error(ref: FileRef, epoch: Epoch) -> CorruptCheckpoint:
    """Return the error for a provenance file that is missing."""
    return CorruptCheckpoint(f"{provenance_name_of(ref, epoch)} ({ref.name}): the file is missing, and in no pack")


def unreadable_error(ref: FileRef, epoch: Epoch, damaged: Sequence[ProvenancePack]) -> CorruptCheckpoint:
    """Return the error for a file that is missing or in a damaged pack."""
    location = f"the file is missing, or in the damaged {paths.provenance_name(damaged[0])}"
    more = f", or in another of {len(damaged)} that are damaged" if len(damaged) > 1 else ""
    return CorruptCheckpoint(f"{provenance_name_of(ref, epoch)} ({ref.name}): {location}{more}")
