"""Workers of a job as light processes that count what they send, receive and ask of the checkpoint store.

They are forked from one process that has imported the engine, so that a hundred of them have room on one machine. All
else is the engine's: its worker, its connections, its state. The store is a directory behind the interface of an object
store, where one call is one request.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, wraps
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import msgspec
from pyarrow.fs import LocalFileSystem

from benchmarks.apps.generated import Counter
from kafka_eos.core.ids import AppRef
from kafka_eos.embedded import tcp_process_pool, worker_process
from kafka_eos.embedded.launched_worker import WorkerTask, read_io_bytes
from kafka_eos.runtime.exchange.network import Network
from kafka_eos.runtime.transport.data_socket import DataSocket
from kafka_eos.runtime.worker.control_messages import ControlMessage, StartSession, ToWorker, WorkerConfig, encode_frame
from kafka_eos.runtime.worker.tcp_connections import TcpConnections
from kafka_eos.runtime.worker.worker import Worker
from kafka_eos.runtime.worker.worker_connections import UnixConnections, WorkerConnections
from kafka_eos.runtime.worker.worker_ticket import WorkerTicket
from kafka_eos.storage import storage_factory
from kafka_eos.storage.pyarrow_store import PyArrowStore
from kafka_eos.storage.remote_storage import BlobStore

_PAGE = 1000
"""Names in one answer of a store to a listing, and in one request of deletion."""
_FRAMES = {"send": "rows", "send_barrier": "barrier", "send_watermark": "watermark", "credit": "credit"}
_forks = multiprocessing.get_context("forkserver")


class Counts:
    """The counters of one process, in files that another process reads while they grow. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._lock = directory, threading.Lock()
        self._counters: dict[str, Counter] = {}

    def add(self, kind: str, more: int = 1) -> None:
        with self._lock:
            if kind not in self._counters:
                self._counters[kind] = Counter(self._directory / f"{kind}-{os.getpid()}.count")
            self._counters[kind].add(more)


def read_counts(directory: Path) -> dict[str, int]:
    """Return the sum over all processes, by kind."""
    kinds = {path.name.rpartition("-")[0] for path in directory.glob("*.count")}
    return {kind: Counter.total(directory, kind) for kind in sorted(kinds)}


def count_requests(counts: Counts, root: Path) -> None:
    """Keep the checkpoints of this process's jobs in ``root``, and count the requests."""
    store = CountedStore(PyArrowStore(LocalFileSystem(), str(root)), counts)
    storage_factory._connected = lambda uri: store  # type: ignore[assignment]


class CountedStore:
    """A store that counts requests by method and directory."""

    def __init__(self, store: BlobStore, counts: Counts) -> None:
        self._store, self._counts = store, counts

    def create(self, name: str, data: bytes) -> None:
        self._count("PUT", name, 1, len(data))
        self._store.create(name, data)

    def put(self, name: str, chunks: Iterable[bytes], size: int) -> None:
        self._count("PUT", name, 1, size)
        self._store.put(name, chunks, size)

    def read(self, name: str) -> Iterator[bytes]:
        self._count("GET", name)
        return self._store.read(name)

    def read_part(self, name: str, start: int, size: int) -> bytes:
        self._count("GET", name)
        return self._store.read_part(name, start, size)

    def size(self, name: str) -> int | None:
        self._count("HEAD", name)
        return self._store.size(name)

    def list(self, directory: str) -> Sequence[str]:
        found = self._store.list(directory)
        self._count("LIST", f"{directory}/", max(1, math.ceil(len(found) / _PAGE)))
        return found

    def directories(self) -> Sequence[str]:
        return self._store.directories()

    def delete(self, names: Sequence[str]) -> None:
        self._count("DELETE", names[0] if names else "", math.ceil(len(names) / _PAGE))
        self._store.delete(names)

    def remove_debris(self) -> None:
        self._store.remove_debris()

    def _count(self, method: str, name: str, requests: int = 1, size: int = 0) -> None:
        self._counts.add(f"store.{method}.{name.partition('/')[0] or 'root'}", requests)
        if size:
            self._counts.add("store.bytes", size)


class CountedConnections(WorkerConnections):
    """A worker's connections, with the control messages counted by kind."""

    def __init__(self, connections: WorkerConnections, counts: Counts) -> None:
        self._connections, self._counts = connections, counts

    def send(self, message: ControlMessage) -> None:
        self._counts.add(f"control.{type(message).__name__}")
        self._counts.add("control.bytes", len(encode_frame(message)))
        self._connections.send(message)

    def receive(self) -> Iterator[ToWorker]:
        for message in self._connections.receive():
            self._counts.add(f"control.{type(message).__name__}")
            self._counts.add("control.bytes", len(encode_frame(message)))
            yield message

    def connect_peers(self, start: StartSession, is_cancelled: Callable[[], bool]) -> Mapping[int, DataSocket]:
        return self._connections.connect_peers(start, is_cancelled)


class LightWorker(WorkerTask):
    """A forked process with the arguments and the properties of ``ChildProcess``."""

    counts: Path
    store: Path

    def __init__(self, app: AppRef, subtask: int, config: bytes, control: str, control_fd: int) -> None:
        given: socket.socket | bytes
        if control == "unix":
            given = socket.socket(fileno=os.dup(control_fd))
        else:
            given = os.pread(control_fd, os.fstat(control_fd).st_size, 0)
        bench = {name: value for name, value in os.environ.items() if name.startswith("BENCH_")}
        arguments = (app, subtask, config, given, bench, self.counts, self.store)
        self._process = _forks.Process(target=_work, args=arguments, daemon=True)
        self._lock = threading.Lock()
        with self._lock:
            self._process.start()
        if isinstance(given, socket.socket):
            given.close()

    @property
    def pid(self) -> int:
        return self._process.pid or 0

    @property
    def alive(self) -> bool:
        return not wait([self._process.sentinel], 0)

    @property
    def io_bytes(self) -> int:
        return read_io_bytes(self.pid)

    def describe_end(self) -> str | None:
        return self.wait(1.0)

    def wait(self, seconds: float | None = None) -> str | None:
        """Wait for the end of the process. Return that it ended, or None if it still runs then."""
        return "has ended" if wait([self._process.sentinel], seconds) else None

    def read_stacks(self) -> str:
        return "the stacks of a light worker are not read"

    def kill(self) -> None:
        with self._lock:
            self._process.kill()
        self.wait()


def use_light_workers(counts: Path, store: Path) -> None:
    """Let the pools of this process start light workers, which count in ``counts`` and store in ``store``."""
    LightWorker.counts, LightWorker.store = counts, store
    count_requests(Counts(counts), store)
    worker_process.ChildProcess = LightWorker  # type: ignore[misc, assignment]
    tcp_process_pool.ChildProcess = LightWorker  # type: ignore[misc, assignment]


@cache
def start_fork_server() -> None:
    """Start the process from which workers are forked."""
    _forks.set_forkserver_preload([__name__, "kafka_eos", "kafka_eos.runtime.state.rocksdb_store"])
    waiting = _forks.Process(target=int)
    waiting.start()
    waiting.join()


def _work(
    app: AppRef,
    subtask: int,
    config: bytes,
    control: socket.socket | bytes,
    environment: Mapping[str, str],
    directory: Path,
    store: Path,
) -> None:
    os.environ.update(environment)
    counts = Counts(directory)
    count_requests(counts, store)
    for name, kind in _FRAMES.items():
        setattr(Network, name, _counted(getattr(Network, name), counts, f"frame.{kind}"))
    connections: WorkerConnections
    if isinstance(control, bytes):
        connections = TcpConnections(msgspec.json.decode(control, type=WorkerTicket))
    else:
        connections = UnixConnections(control)
    decoded = msgspec.json.decode(config, type=WorkerConfig)
    counted = CountedConnections(connections, counts)
    Worker(app, decoded, f"worker {subtask}", counted, lambda: os._exit(0)).run()


def _counted(method: Callable[..., Any], counts: Counts, kind: str) -> Callable[..., Any]:
    @wraps(method)
    def call(*given: Any) -> Any:
        counts.add(kind)
        return method(*given)

    return call
