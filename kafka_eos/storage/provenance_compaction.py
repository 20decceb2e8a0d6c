"""Puts files of provenance together while their job runs, so that their number does not grow with its epochs.

Any file may be packed at any time: it is named by its content, and nobody needs it where it is. ``packs`` decides which
go together; here they are read, published as one, and deleted then.

Rule: what is deleted is in a pack that is durable. A crash in between leaves a file in both, which says the same, and
the next round goes on. Nothing that the job does depends on it: what cannot be packed now is said, and packed later. It
keeps nothing else from being packed, and no look from ending soon: no epoch begins meanwhile.
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
from kafka_eos.storage.object_names import Pack, Single

AT_ONCE: Final = 16
"""Files that are read at the same time."""


class Packer:
    """Of one coordinator. ``notice`` hears, in words, what could not be packed."""

    def __init__(self, storage: JobStorage, notice: Callable[[str], None]) -> None:
        self._storage, self._notice = storage, notice
        self._forgotten = LIMITS.epochs_per_packing
        """Since the last look. The first one finds what coordinators before this one have left."""
        self._damaged: set[Single | Pack] = set()
        self._strays: set[str] = set()
        self._failed: dict[Single | Pack, None] = {}
        """What could not be packed when it was last tried, longest ago first: it comes after all else, in that order,
        or nothing else would come."""

    def forgotten(self, epochs: int) -> None:
        """So many more epochs are known to the ledger alone. Packs if it is time, and compresses logs that are full.

        Raises nothing of the storage.
        """
        self._forgotten += epochs
        if self._forgotten < LIMITS.epochs_per_packing:
            return
        self._forgotten = 0
        try:
            self._storage.compress()
        except OSError as error:
            self._notice(f"full files of logs cannot be compressed: {error}. The job goes on; it is tried again later")
        try:
            if self.pack():
                self._forgotten = LIMITS.epochs_per_packing
        except OSError as error:
            self._notice(f"files of provenance cannot be packed: {error}. The job goes on; they are packed later")

    def pack(self) -> bool:
        """Pack what may be packed, ``packs_per_round`` times at most. Is there more, so that it is to be called again?

        Raises OSError; then some is packed, and nothing is lost.
        """
        made = 0
        for tried, some in enumerate(self._groups()):
            if tried == LIMITS.packs_per_round:
                return made > 0
            if not (found := self._contents(some)):
                return False  # the store is away, or another coordinator packs
            made += self._together(found)
        return False

    def _groups(self) -> Iterator[Sequence[Single | Pack]]:
        """What goes together: files that stand alone, then packs, also those just made, then what failed before."""
        alone = packs.groups(file for file in self._sound() if isinstance(file, Single))
        known = frozenset(self._failed)
        yield from (some for some in alone if known.isdisjoint(some))
        more = packs.groups(file for file in self._sound() if isinstance(file, Pack))
        yield from (some for some in more if known.isdisjoint(some))
        turn = {file: place for place, file in enumerate(self._failed)}
        tried: list[Sequence[Single | Pack]] = [*alone, *more]
        again = [some for some in tried if not known.isdisjoint(some)]
        yield from sorted(again, key=lambda some: min(turn.get(file, len(turn)) for file in some))

    def _sound(self) -> list[Single | Pack]:
        """What is stored, as far as it is known to be whole."""
        return [file for file in provenance.listed(self._storage, self._stray) if file not in self._damaged]

    def _stray(self, name: str) -> None:
        if name not in self._strays:
            self._strays.add(name)
            self._notice(f"{paths.stray(name)}. The job goes on, and leaves it as it is")

    def _contents(self, files: Sequence[Single | Pack]) -> dict[Single | Pack, Mapping[str, bytes]]:
        """What can be packed of these, with what it holds."""
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="pack") as pool:
            read = dict(zip(files, pool.map(self._read, files), strict=True))
        failed = {file: error for file, error in read.items() if isinstance(error, OSError)}
        if new := [file for file in failed if file not in self._failed]:
            which = paths.provenance_name(new[0]) + (f" and {len(new) - 1} more" if len(new) > 1 else "")
            self._notice(f"{which} cannot be packed: {failed[new[0]]}. The job goes on; it is tried again later")
        self._fail(files, failed)
        return {file: held for file, held in read.items() if held is not None and not isinstance(held, OSError)}

    def _fail(self, tried: Iterable[Single | Pack], failed: Iterable[Single | Pack]) -> None:
        """Of these, those have failed just now; the others have not."""
        for file in tried:
            self._failed.pop(file, None)
        self._failed.update(dict.fromkeys(failed))

    def _together(self, found: Mapping[Single | Pack, Mapping[str, bytes]]) -> bool:
        """Make one pack of these, if they are several. Is it made?"""
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

    def _published(self, pack: Pack, content: bytes) -> bool:
        """Is the pack there, and whole?"""
        try:
            self._storage.publish(paths.provenance_name(pack), content)
        except FileExistsError:
            # Made of the same before, by a round that was interrupted. What is deleted now must be in it still.
            return bool(self._contents([pack]))
        return True

    def _read(self, file: Single | Pack) -> Mapping[str, bytes] | OSError | None:
        """What a file holds, or why it cannot be read; None if it is gone, or damaged, which is said once."""
        try:
            return provenance.opened(self._storage, file)
        except FileNotFoundError:
            return None  # packed by another coordinator
        except CorruptCheckpoint as error:
            self._damaged.add(file)
            self._notice(f"{error}: it is left as it is")
            return None
        except OSError as error:
            return error
