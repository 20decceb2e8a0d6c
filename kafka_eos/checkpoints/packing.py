"""Puts files of provenance together while their job runs, so that their number does not grow with its epochs.

Any file may be packed at any time: it is named by its content, and nobody needs it where it is. ``packs`` decides which
go together; here they are read, published as one, and deleted then.

Rule: what is deleted is in a pack that is durable. A crash in between leaves a file in both, which says the same, and
the next round goes on. Nothing that the job does depends on it: what cannot be packed now is said, and packed later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from kafka_eos import failpoints
from kafka_eos.checkpoints import packs, paths, provenance
from kafka_eos.checkpoints.paths import Pack, Single
from kafka_eos.checkpoints.storage import JobStorage
from kafka_eos.errors import CorruptCheckpoint

AT_ONCE: Final = 16
"""Files that are read at the same time."""
EPOCHS: Final = 16
"""Epochs that are forgotten between two looks for what may be packed."""


class Packer:
    """Of one coordinator. ``notice`` hears, in words, what could not be packed."""

    def __init__(self, storage: JobStorage, notice: Callable[[str], None]) -> None:
        self._storage, self._notice = storage, notice
        self._forgotten = EPOCHS
        """Since the last look. The first one finds what coordinators before this one have left."""
        self._damaged: set[Single | Pack] = set()

    def forgotten(self, epochs: int) -> None:
        """So many more epochs are known to the ledger alone. Packs, if it is time. Raises nothing of the storage."""
        self._forgotten += epochs
        if self._forgotten < EPOCHS:
            return
        self._forgotten = 0
        try:
            self.pack()
        except OSError as error:
            self._notice(f"files of provenance cannot be packed: {error}. The job goes on; they are packed later")

    def pack(self) -> None:
        """Pack all that may be packed. Raises OSError; then some is packed, and nothing is lost."""
        for some in packs.groups(file for file in self._sound() if isinstance(file, Single)):
            self._together(some)
        for more in packs.groups(file for file in self._sound() if isinstance(file, Pack)):
            self._together(more)

    def _sound(self) -> list[Single | Pack]:
        """What is stored, as far as it is known to be whole."""
        found = provenance.listed(self._storage)
        return [file for file in found if isinstance(file, Single | Pack) and file not in self._damaged]

    def _together(self, files: Sequence[Single | Pack]) -> None:
        """Make one pack of these."""
        held: dict[str, bytes] = {}
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix="pack") as pool:
            read = list(zip(files, pool.map(self._read, files), strict=True))
        there = [file for file, found in read if found is not None]
        for _, found in read:
            held |= found or {}
        if len(there) < 2:
            return
        pack, content = packs.encode(*packs.span(there), held)
        try:
            self._storage.publish(paths.provenance_name(pack), content)
        except FileExistsError:
            # Made of the same before, by a round that was interrupted. What is deleted now must be in it still.
            if self._read(pack) is None:
                return
        failpoints.hit("packing.published")
        self._storage.delete_all([paths.provenance_name(file) for file in there if file != pack])
        failpoints.hit("packing.deleted")

    def _read(self, file: Single | Pack) -> dict[str, bytes] | None:
        """What a file holds; None if it cannot be packed: it is gone, or damaged, which is said once."""
        try:
            return dict(provenance.opened(self._storage, file))
        except FileNotFoundError:
            return None  # packed by another coordinator
        except CorruptCheckpoint as error:
            self._damaged.add(file)
            self._notice(f"{error}: it is left as it is")
            return None
