"""Faults at any request that code makes of a checkpoint store, and a look at the store between any two of them.

A place is reached by what the product really asks for: a directory through ``os``, an object store through obstore's
functions (its store in memory), a file system through pyarrow's methods. Each of these calls is one request. A fault
happens at the n-th one:

    crash           the process dies before the request
    crash within    it dies when half of the request is done: of the bytes of a write, of the names of a deletion
    refuse          the request is not carried out, and raises OSError
    refuse within   half of it is done, and it raises OSError
    lose answer     it is carried out, and raises OSError all the same

Rule: after a crash nothing that the code still does reaches the store, as nothing of a dead process does.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar

import obstore
import pytest
from obstore.store import MemoryStore
from pyarrow.fs import LocalFileSystem

from kafka_eos.storage.job_storage import JobStorage, LocalStorage
from kafka_eos.storage.object_store import ObjectStore
from kafka_eos.storage.pyarrow_store import PyArrowStore
from kafka_eos.storage.remote_storage import RemoteStorage

T = TypeVar("T")
Kind: TypeAlias = Literal["crash", "crash within", "refuse", "refuse within", "lose answer"]
CRASHES: Final[tuple[Kind, ...]] = ("crash", "crash within")
ERRORS: Final[tuple[Kind, ...]] = ("refuse", "refuse within", "lose answer")


class Crash(BaseException):
    """The process is dead."""


class Requests:
    """Counts the requests of one process and makes the ``at``-th one fail; with 0 none does."""

    def __init__(self, kind: Kind = "crash", at: int = 0, between: Callable[[], object] = lambda: None) -> None:
        """``between`` is called before each request; what it asks of the store is not counted, and never fails."""
        self.kind, self.at, self.between = kind, at, between
        self.count = 0
        self.failed = False
        """Has the fault happened?"""
        self._looking = False

    def __str__(self) -> str:
        return f"{self.kind} at request {self.at}"

    @property
    def _crashed(self) -> bool:
        return self.failed and self.kind in CRASHES

    def ask(self, request: Callable[[], T], half: Callable[[], object] | None = None) -> T:
        """Carry out a request, unless it is the one that fails. ``half`` does half of it, if there is such a thing."""
        if self._looking:
            return request()
        if self._crashed:
            raise Crash
        self._looking = True
        try:
            self.between()
        finally:
            self._looking = False
        if half is None and self.kind.endswith("within"):
            return request()
        self.count += 1
        if self.count != self.at:
            return request()
        self.failed = True
        if half is not None and self.kind.endswith("within"):
            half()
        if self.kind == "lose answer":
            request()
        if self._crashed:
            raise Crash
        raise OSError(errno.EIO, f"{self}")


def every(*kinds: Kind) -> Iterator[Requests]:
    """A fault of each kind at each request of what the caller does with them, till there is no such request."""
    for kind in kinds:
        for at in itertools.count(1):
            requests = Requests(kind, at)
            yield requests
            if not requests.failed:
                break


class Place(Protocol):
    """Where the objects of a job are."""

    def open(self) -> JobStorage:
        """As a process does that begins."""

    def reached(self, requests: Requests) -> Any:
        """A context in which the requests of every storage of this place are these."""


class Directory:
    """A directory of this machine. Nothing is synced: what a power cut takes is the matter of ``power_cuts``."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._open: set[int] = set()

    def open(self) -> LocalStorage:
        return LocalStorage(self.root / "job")

    @contextmanager
    def reached(self, requests: Requests) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            for name in ("link", "rename", "unlink", "mkdir", "rmdir", "listdir"):
                patch.setattr(os, name, self._named(requests, getattr(os, name)))
            patch.setattr(os, "open", self._opening(requests, os.open))
            patch.setattr(os, "write", self._writing(requests, os.write))
            patch.setattr(os, "close", self._closing(os.close))
            patch.setattr(os, "fsync", lambda fd: requests.ask(lambda: None) if fd in self._open else None)
            try:
                yield
            finally:
                for fd in tuple(self._open):  # as the system does when a process ends
                    os.close(fd)

    def _is_mine(self, path: Any, directory: int | None) -> bool:
        return directory in self._open if directory is not None else Path(path).is_relative_to(self.root)

    def _named(self, requests: Requests, call: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Any, *args: Any, **kwargs: Any) -> Any:
            if not self._is_mine(args[0] if args and call.__name__ == "link" else path, kwargs.get("dir_fd")):
                return call(path, *args, **kwargs)
            return requests.ask(lambda: call(path, *args, **kwargs))

        return called

    def _opening(self, requests: Requests, call: Callable[..., int]) -> Callable[..., int]:
        def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            if not self._is_mine(path, kwargs.get("dir_fd")):
                return call(path, flags, *args, **kwargs)
            fd = requests.ask(lambda: call(path, flags, *args, **kwargs))
            self._open.add(fd)
            return fd

        return opened

    def _writing(self, requests: Requests, call: Callable[..., int]) -> Callable[..., int]:
        def written(fd: int, data: Any) -> int:
            if fd not in self._open:
                return call(fd, data)
            return requests.ask(lambda: call(fd, data), lambda: call(fd, bytes(data)[: len(data) // 2]))

        return written

    def _closing(self, call: Callable[[int], None]) -> Callable[[int], None]:
        def closed(fd: int) -> None:
            self._open.discard(fd)
            call(fd)

        return closed


class Objects:
    """An object store, as its client asks for it. A listing has what was there all the time while it was made."""

    def __init__(self) -> None:
        self._client = MemoryStore()
        self.lists_at_once = False

    def open(self) -> RemoteStorage:
        return RemoteStorage(ObjectStore(self._client))

    @contextmanager
    def reached(self, requests: Requests) -> Iterator[None]:
        delete, listing = obstore.delete, obstore.list_with_delimiter

        def deleted(client: Any, names: list[str]) -> None:
            half = names[: len(names) // 2]
            requests.ask(lambda: delete(client, names), (lambda: delete(client, half)) if half else None)

        def listed(*args: Any) -> Any:
            first = last = requests.ask(lambda: listing(*args))
            if not self.lists_at_once:
                last = requests.ask(lambda: listing(*args))
            still_there = {entry["path"] for entry in last["objects"]}
            return {**first, "objects": [entry for entry in first["objects"] if entry["path"] in still_there]}

        with pytest.MonkeyPatch.context() as patch:
            for name in ("put", "get", "head"):
                patch.setattr(obstore, name, _asking(requests, getattr(obstore, name)))
            patch.setattr(obstore, "list_with_delimiter", listed)
            patch.setattr(obstore, "delete", deleted)
            yield


def _asking(requests: Requests, call: Callable[..., T]) -> Callable[..., T]:
    return lambda *args, **kwargs: requests.ask(lambda: call(*args, **kwargs))


class FileSystem:
    """A file system that pyarrow reaches."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.requests = Requests()

    def open(self) -> RemoteStorage:
        return RemoteStorage(PyArrowStore(_Asked(LocalFileSystem(), self), str(self.root / "job")))  # type: ignore[arg-type]

    @contextmanager
    def reached(self, requests: Requests) -> Iterator[None]:
        before, self.requests = self.requests, requests
        try:
            yield
        finally:
            self.requests = before


class _Asked:
    """A file system or a stream of it: each call is a request."""

    def __init__(self, inner: Any, place: FileSystem) -> None:
        self._inner, self._place = inner, place

    def __getattr__(self, name: str) -> Callable[..., Any]:
        call = getattr(self._inner, name)
        return lambda *args, **kwargs: self._place.requests.ask(lambda: call(*args, **kwargs))

    def open_output_stream(self, path: str) -> _Asked:
        return _Asked(self._place.requests.ask(lambda: self._inner.open_output_stream(path)), self._place)

    def write(self, data: bytes) -> None:
        half = data[: len(data) // 2]
        self._place.requests.ask(lambda: self._inner.write(data), lambda: self._inner.write(half))

    def __enter__(self) -> _Asked:
        return self

    def __exit__(self, *_: object) -> None:
        self._inner.close()  # as the system does when a process ends
