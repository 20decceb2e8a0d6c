"""A process of its own that writes into a storage as the test tells it, so that it can race and be killed.

Arguments: the storage as ``open_for`` reads it. Each line of standard input is one order; each is answered by a line.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from kafka_eos.checkpoints.arrow import PyArrowStore
from kafka_eos.checkpoints.opening import open_storage
from kafka_eos.checkpoints.packing import Packer
from kafka_eos.checkpoints.remote import RemoteStorage
from kafka_eos.checkpoints.storage import JobStorage


def open_for(where: str) -> JobStorage:
    """``pyarrow:<directory>`` is a directory that is reached as pyarrow reaches a cluster; else ``open_storage``."""
    kind, _, directory = where.partition(":")
    if kind != "pyarrow":
        return open_storage(where)
    Path(directory).mkdir(parents=True, exist_ok=True)
    return RemoteStorage(PyArrowStore(ListedAtOnce(Path(directory)), "job"))  # type: ignore[arg-type]


class ListedAtOnce:
    """A directory through pyarrow, listed in one step as HDFS does it.

    pyarrow's own listing looks at each name a second time, and leaves out what is gone by then without what replaced
    it: see ``remote.Store.list``.
    """

    def __init__(self, root: Path) -> None:
        from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

        self._root, self._files = root, SubTreeFileSystem(str(root), LocalFileSystem())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def get_file_info(self, of: Any) -> Any:
        from pyarrow.fs import FileInfo, FileSelector

        if not isinstance(of, FileSelector):
            return self._files.get_file_info(of)
        return [FileInfo(f"{of.base_dir}/{name}") for name in os.listdir(self._root / of.base_dir)]


def content(name: str, size: int) -> bytes:
    """What ``name`` holds if it is whole."""
    seed = name.encode() + b"\n"
    return (seed * (size // len(seed) + 1))[:size]


def main() -> None:
    storage = open_for(sys.argv[1])
    print("ready", flush=True)
    for order in sys.stdin:
        what, name, rest = order.split()
        print("begun", flush=True)
        if what == "race":
            try:
                storage.publish(name, rest.encode() * 1000)
                print("won", flush=True)
            except FileExistsError:
                print("lost", flush=True)
        elif what == "publish":
            storage.publish(name, content(name, int(rest)))
            print("done", flush=True)
        elif what == "pack":
            Packer(storage, sys.exit).pack()
            print("done", flush=True)
        else:
            storage.upload(Path(rest), name)
            print("done", flush=True)


if __name__ == "__main__":
    main()
