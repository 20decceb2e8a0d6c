"""Files that say where output came from: stored before their epoch is decided, and kept as long as the ledger.

A file is alone at first and then in a pack, which is durable before the file that stood alone is deleted. So who misses
a file looks for it again until two looks in a row see the same objects: then it is gone.

Rule: a file is what its committable says it is, or it is CorruptCheckpoint, named. What is not of this package is never
read, packed or deleted: it is no reason to stop a job.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from kafka_eos.abc.committer import Committable, Unstored
from kafka_eos.abc.storage import CheckpointStorage, FileRef
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.ids import Epoch
from kafka_eos.core.limits import LIMITS
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import provenance_packs as packs
from kafka_eos.storage.object_names import Pack, Provenance, Single


def stored(storage: CheckpointStorage, epoch: Epoch, committable: Committable) -> Committable:
    """The committable as a manifest may hold it: its provenance is durable on return. OSError if it cannot be.

    ``epoch``: the one that wrote it.
    """
    if not isinstance(committable, Unstored) or committable.provenance is None:
        return committable
    # Named by its content: what is there already is the rest of a call that failed.
    with suppress(FileExistsError):
        storage.publish(name_of(committable.provenance, epoch), committable.content)
    told = committable.scope, committable.payload, committable.records, committable.by_sink, committable.spread
    return Committable(*told, committable.provenance)


def name_of(ref: FileRef, epoch: Epoch) -> str:
    """What a file is called as long as it stands alone."""
    return paths.provenance_name(Single(epoch, ref.size, ref.sha256))


def unheard(name: str) -> None:
    """Nobody wants to hear of strays."""


def listed(storage: CheckpointStorage, stray: Callable[[str], None] = unheard) -> tuple[Provenance, ...]:
    """All that is stored. ``stray`` hears each name that is not of this package, but for hidden ones.

    Those are the file system's own, and go by themselves: NFS gives one to what is deleted while somebody reads it.
    """
    try:
        names = storage.list(paths.PROVENANCE)
    except FileNotFoundError:
        return ()  # no epoch has stored any
    found = list[Provenance]()
    for name in names:
        try:
            found.append(paths.parse_provenance_name(name))
        except CorruptCheckpoint:
            if not name.startswith(f"{paths.PROVENANCE}/."):
                stray(name)
    return tuple(found)


def opened(storage: CheckpointStorage, file: Provenance) -> Mapping[str, bytes]:
    """The files that an object holds, by SHA-256. FileNotFoundError if it is absent, CorruptCheckpoint if damaged."""
    name = paths.provenance_name(file)
    content = storage.read(name)
    if isinstance(file, Pack):
        try:
            return packs.decode(file, content)
        except ValueError as error:
            raise CorruptCheckpoint(f"{name}: {error}") from error
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise CorruptCheckpoint(f"{name}: the content does not match its checksum")
    return {file.sha256: content}


class Shelf:
    """The files of one store, for one reader that asks for them in the order of epochs, more or less."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._files: tuple[Provenance, ...] = ()
        self._alone: Mapping[str, Provenance] = {}
        self._packs: Sequence[Pack] = ()
        self._open: OrderedDict[Pack, Mapping[str, bytes]] = OrderedDict()

    def load(self, ref: FileRef, epoch: Epoch) -> bytes:
        """The content of a file; ``epoch``: the one that committed it.

        CorruptCheckpoint, naming it, if it is absent or not what was stored.
        """
        while True:
            damaged: list[CorruptCheckpoint] = []
            for file in self._places(ref, epoch):
                try:
                    content = self._opened(file).get(ref.sha256)
                except FileNotFoundError:
                    # Packed meanwhile, and deleted then: what it was packed into is listed now, and near.
                    if self._look():
                        break
                    continue
                except CorruptCheckpoint as error:
                    damaged.append(error)
                    continue
                if content is not None:
                    return content
            else:
                if not self._look():
                    raise damaged[0] if damaged else absent(ref, epoch)

    def _places(self, ref: FileRef, epoch: Epoch) -> Iterator[Provenance]:
        """Where a file may be, the likeliest first: what an epoch has recorded that epoch commits, or a later one."""
        if ref.sha256 in self._alone:
            yield self._alone[ref.sha256]
        yield from likeliest(self._packs, epoch)

    def _opened(self, file: Provenance) -> Mapping[str, bytes]:
        if not isinstance(file, Pack):
            return opened(self._storage, file)
        if file not in self._open:
            found = opened(self._storage, file)
            if len(self._open) >= LIMITS.open_packs:
                self._open.popitem(last=False)
            self._open[file] = found
        self._open.move_to_end(file)
        return self._open[file]

    def _look(self) -> bool:
        """List what is there. Is it other than it was?"""
        before, self._files = self._files, listed(self._storage)
        self._alone = {file.sha256: file for file in self._files if not isinstance(file, Pack)}
        self._packs = [file for file in self._files if isinstance(file, Pack)]
        return self._files != before


def likeliest(some: Iterable[Pack], epoch: Epoch) -> list[Pack]:
    """The packs that may hold what ``epoch`` has committed, the likeliest first."""
    return sorted((pack for pack in some if pack.first <= epoch), key=lambda pack: max(0, epoch.n - pack.last.n))


def absent(ref: FileRef, epoch: Epoch) -> CorruptCheckpoint:
    """The error that names a file which is nowhere; ``epoch``: the one that committed it."""
    return CorruptCheckpoint(f"{name_of(ref, epoch)} ({ref.name}): the file is missing, and in no pack")


def hidden(ref: FileRef, epoch: Epoch, damaged: Sequence[Pack]) -> CorruptCheckpoint:
    """As ``absent``, where ``damaged`` packs, the likeliest first, may hold it: who cannot read them cannot tell."""
    told = f"the file is missing, or in the damaged {paths.provenance_name(damaged[0])}"
    more = f", or in another of {len(damaged)} that are damaged" if len(damaged) > 1 else ""
    return CorruptCheckpoint(f"{name_of(ref, epoch)} ({ref.name}): {told}{more}")
