"""A process of its own that writes into a storage as the test tells it, so that it can race and be killed.

Arguments: the storage as ``open_for`` reads it. Each line of standard input is one order; each is answered by a line.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kafka_eos.storage.job_storage import JobStorage
from kafka_eos.storage.provenance_compaction import ProvenancePacker
from kafka_eos.storage.pyarrow_store import PyArrowStore
from kafka_eos.storage.remote_storage import RemoteStorage
from kafka_eos.storage.storage_factory import open_storage


def open_for(where: str) -> JobStorage:
    """``pyarrow:<directory>`` is a directory that is reached as pyarrow reaches a cluster; else ``open_storage``."""
    kind, _, directory = where.partition(":")
    if kind != "pyarrow":
        return open_storage(where)
    from pyarrow.fs import LocalFileSystem, SubTreeFileSystem

    Path(directory).mkdir(parents=True, exist_ok=True)
    return RemoteStorage(PyArrowStore(SubTreeFileSystem(directory, LocalFileSystem()), "job"))


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
            ProvenancePacker(storage, sys.exit).pack()
            print("done", flush=True)
        else:
            storage.upload(Path(rest), name)
            print("done", flush=True)


if __name__ == "__main__":
    main()
