"""What a disk may hold after a power cut, for every moment of a piece of real code.

``recorded`` runs the code for real and notes what it asks of the operating system. ``states`` then gives every tree
of files that a power cut may leave: after each prefix of the operations, with each legal loss of what was not synced.

The model of the disk is what POSIX guarantees and no more:

- The content of a file is what it was at its last fsync, or anything that was written since: nothing, a torn part,
  zeros, all of it.
- A name (made, linked, renamed, removed) is durable once its directory was synced. Until then it may be as before,
  and names are lost one by one, in any combination. A rename is one step.

Rule: nothing is simulated while the code runs. What was written is read from the disk before each operation, so it
does not matter by which call it was written.
"""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.connectors.files import disk
from kafka_eos.core.errors import KafkaEosError

ROOT = 0
"""The number of the directory that is watched."""


@dataclass(frozen=True, slots=True)
class Content:
    """A file has this content from now on, as far as processes see."""

    file: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Synced:
    """fsync of a file or a directory."""

    what: int


@dataclass(frozen=True, slots=True)
class Names:
    """One step: these names, each in a directory, lead to these files or directories from now on; None: to nothing."""

    changes: tuple[tuple[int, str, int | None], ...]


Operation = Content | Synced | Names


@dataclass
class Tree:
    """Directories by number, files by number."""

    directories: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytes] = field(default_factory=dict)

    def apply(self, names: Names) -> None:
        for directory, name, target in names.changes:
            entries = self.directories.setdefault(directory, {})
            if target is None:
                entries.pop(name, None)
            else:
                entries[name] = target

    def listing(self, directory: int = ROOT, below: str = "") -> dict[str, int]:
        """Every path that can be reached, with its number. Directories end in a slash."""
        found: dict[str, int] = {}
        for name, number in self.directories.get(directory, {}).items():
            if number in self.directories:
                found[f"{below}{name}/"] = number
                found |= self.listing(number, f"{below}{name}/")
            else:
                found[f"{below}{name}"] = number
        return found

    def write(self, target: Path) -> None:
        """Make it real in a new directory. Names of one file are links to it; files are private."""
        target.mkdir(parents=True)
        made: dict[int, Path] = {}
        for path, number in sorted(self.listing().items()):
            at = target / path
            if path.endswith("/"):
                at.mkdir(mode=0o700)
            elif number in made:
                os.link(made[number], at)
            else:
                at.write_bytes(self.files.get(number, b""))
                at.chmod(0o600)
                made[number] = at

    def key(self) -> tuple[Any, ...]:
        return tuple((path, number, self.files.get(number)) for path, number in sorted(self.listing().items()))


@dataclass
class Recording:
    """What was there at first, all of it durable, and what was done to it."""

    start: Tree
    operations: Sequence[Operation]
    directories: set[int]
    """All that ever were: one that has lost its names is still no file."""

    def cut(self, length: int) -> Recording:
        return replace(self, operations=self.operations[:length])

    def without(self, forgotten: Callable[[int, Operation], bool]) -> Recording:
        """As if the code had left out some of it."""
        return replace(self, operations=[each for i, each in enumerate(self.operations) if not forgotten(i, each)])

    @property
    def syncs(self) -> list[int]:
        """Where in the operations an fsync is."""
        return [i for i, each in enumerate(self.operations) if isinstance(each, Synced)]

    def forgetting(self, sync: int) -> Recording:
        """As if the code had left out one fsync: the n-th."""
        at = self.syncs[sync]
        return self.without(lambda i, _: i == at)


class _Recorder:
    """Compares the directory with what it knew before each operation that the code asks for."""

    def __init__(self, root: Path) -> None:
        self._root, self._numbers, self._next = root, dict[tuple[int, int], int](), itertools.count(1)
        self._known, self.operations, self.directories = Tree(), list[Operation](), {ROOT}
        self._numbers[self._identity(os.lstat(root))] = ROOT
        self.look()
        self.start = Tree({n: dict(e) for n, e in self._known.directories.items()}, dict(self._known.files))
        self.operations.clear()

    @staticmethod
    def _identity(found: os.stat_result) -> tuple[int, int]:
        return found.st_dev, found.st_ino

    def look(self) -> None:
        """Note everything that changed since the last look: new content first, then names, in one step each."""
        seen = self._scan()
        for number, data in seen.files.items():
            if self._known.files.get(number, b"") != data:
                self.operations.append(Content(number, data))
        for step in self._steps(seen):
            self.operations.append(step)
        self._known = seen

    def _steps(self, seen: Tree) -> list[Names]:
        """A number that left one name and has got another was renamed: that is one step."""
        before = {(d, n): t for d, entries in self._known.directories.items() for n, t in entries.items()}
        after = {(d, n): t for d, entries in seen.directories.items() for n, t in entries.items()}
        gone = {place: target for place, target in before.items() if after.get(place) != target}
        new = {place: target for place, target in after.items() if before.get(place) != target}
        steps = []
        for (directory, name), target in new.items():
            moved = [place for place, number in gone.items() if number == target and place not in new]
            for place in moved:
                del gone[place]
            steps.append(Names(((directory, name, target), *((d, n, None) for d, n in moved))))
        return steps + [Names(((d, n, None),)) for d, n in gone if (d, n) not in new]

    def _scan(self) -> Tree:
        tree, alive = Tree(), {self._identity(os.lstat(self._root))}
        pending = [(self._root, ROOT)]
        while pending:
            directory, number = pending.pop()
            entries = tree.directories.setdefault(number, {})
            self.directories.add(number)
            for entry in sorted(os.scandir(directory), key=lambda e: e.name):
                found = entry.stat(follow_symlinks=False)
                alive.add(self._identity(found))
                child = self._numbers.setdefault(self._identity(found), -1)
                if child < 0:
                    child = self._numbers[self._identity(found)] = next(self._next)
                entries[entry.name] = child
                if entry.is_dir(follow_symlinks=False):
                    pending.append((Path(entry.path), child))
                else:
                    tree.files[child] = Path(entry.path).read_bytes()
        # The system gives the number of a removed file to the next new one.
        self._numbers = {identity: n for identity, n in self._numbers.items() if identity in alive}
        return tree

    def synced(self, fd: int) -> None:
        self.look()
        number = self._numbers.get(self._identity(os.fstat(fd)))
        if number is not None:
            self.operations.append(Synced(number))


_STEPS = ("open", "write", "link", "rename", "replace", "unlink", "remove", "mkdir", "rmdir", "truncate")


@contextmanager
def recorded(root: Path) -> Iterator[Recording]:
    """Watch what is done below ``root``. The recording is complete when the block ends, also by an exception."""
    recorder = _Recorder(root)
    recording = Recording(recorder.start, recorder.operations, recorder.directories)
    fsync = os.fsync

    def synced(fd: int) -> None:
        recorder.synced(fd)
        fsync(fd)

    with pytest.MonkeyPatch.context() as patch:
        for name in _STEPS:
            patch.setattr(os, name, _watched(recorder, getattr(os, name)))
        patch.setattr(os, "fsync", synced)
        patch.setattr(disk, "_rename_noreplace", _watched(recorder, disk._rename_noreplace))
        try:
            yield recording
        finally:
            patch.undo()
            recorder.look()


def _watched(recorder: _Recorder, real: Callable[..., Any]) -> Callable[..., Any]:
    def called(*args: Any, **kwargs: Any) -> Any:
        recorder.look()
        result = real(*args, **kwargs)
        recorder.look()
        return result

    return called


def states(recording: Recording, first: int = 0) -> Iterator[Tree]:
    """Every different tree that a power cut may leave that comes when ``first`` operations are done, or later."""
    seen: set[tuple[Any, ...]] = set()
    for length in range(first, len(recording.operations) + 1):
        for tree in after(recording.cut(length)):
            if (key := tree.key()) not in seen:
                seen.add(key)
                yield tree


def after(recording: Recording) -> Iterator[Tree]:
    """Every tree that a power cut may leave when all of the operations were done."""
    operations = recording.operations
    lasting, pending = _parted(operations)
    assert len(pending) <= 12, f"{len(pending)} names are not synced: too many combinations"
    contents = _contents(recording.start.files, operations)
    for kept in itertools.product((True, False), repeat=len(pending)):
        chosen = {i for i, keep in zip(pending, kept, strict=True) if keep} | lasting
        for variant in contents:
            tree = Tree({n: dict(e) for n, e in recording.start.directories.items()}, dict(variant))
            for i, each in enumerate(operations):
                if i in chosen and isinstance(each, Names):
                    tree.apply(each)
            for made in recording.directories:
                tree.directories.setdefault(made, {})
            yield tree


def _parted(operations: Sequence[Operation]) -> tuple[set[int], list[int]]:
    """Indices of name changes that a sync of their directory made durable, and of the others."""
    lasting, pending = set[int](), list[int]()
    for i, each in enumerate(operations):
        if isinstance(each, Names):
            directory = each.changes[0][0]
            later = operations[i + 1 :]
            if Synced(directory) in later:
                lasting.add(i)
            else:
                pending.append(i)
    return lasting, pending


def _contents(start: Mapping[int, bytes], operations: Sequence[Operation]) -> list[dict[int, bytes]]:
    """What files may hold: all that was synced, and of the rest nothing, half, zeros or all."""
    synced, written = dict(start), dict(start)
    for each in operations:
        if isinstance(each, Content):
            written[each.file] = each.data
        elif isinstance(each, Synced) and each.what in written:
            synced[each.what] = written[each.what]
    variants: list[dict[int, bytes]] = [dict(written), dict(written), dict(written), dict(written)]
    for number, data in written.items():
        safe = synced.get(number, b"")
        if data == safe:
            continue
        tail = data[len(safe) :] if data.startswith(safe) else data
        base = safe if data.startswith(safe) else b""
        variants[1][number] = safe
        variants[2][number] = base + tail[: len(tail) // 2]
        variants[3][number] = base + bytes(len(tail))
    return [variant for i, variant in enumerate(variants) if variant not in variants[:i]]


def broken(recording: Recording, check: Callable[[Path], None], directory: Path, first: int = 0) -> list[str]:
    """What ``check``, which opens a directory with the real code, raises for each state that breaks its guarantee."""
    return list(_broken(recording, check, directory, first))


def breaks(recording: Recording, check: Callable[[Path], None], directory: Path, first: int = 0) -> bool:
    """Whether there is such a state. Stops at the first."""
    return any(_broken(recording, check, directory, first))


def _broken(recording: Recording, check: Callable[[Path], None], directory: Path, first: int) -> Iterator[str]:
    for tree in states(recording, first):
        target = directory / secrets.token_hex(8)
        tree.write(target)
        try:
            check(target)
        except (AssertionError, KafkaEosError, OSError) as error:
            yield f"{sorted(tree.listing())}: {type(error).__name__}: {error}"
        shutil.rmtree(target)
