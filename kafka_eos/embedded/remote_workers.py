"""A pool whose workers connect by TCP, wherever they run.

A worker is launched with a ticket, runs somewhere, and dials the supervisor. Rule: it is never certain that a remote
worker has ended. What one that was given up still does is harmless by its term alone: its channel is closed, and its
number is accepted once.
"""

from __future__ import annotations

import itertools
import logging
import os
import queue
import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress

import msgspec

from kafka_eos.embedded.launched_worker import WorkerTask
from kafka_eos.embedded.subtask_assignment import keep_subtasks, match_local_state
from kafka_eos.embedded.supervisor_events import WorkerConnected, WorkerExited, WorkerMessage
from kafka_eos.embedded.worker_pool import MakeStart, WorkerDied, WorkerHandle, WorkerPool
from kafka_eos.runtime.epoch_reports import RestorePoint
from kafka_eos.runtime.transport.data_socket import DataSocket
from kafka_eos.runtime.transport.tcp_sockets import TcpAddress, TcpListener
from kafka_eos.runtime.worker.control_channel import TcpChannel
from kafka_eos.runtime.worker.control_messages import (
    AcknowledgeCheckpoint,
    ControlMessage,
    ReportStacks,
    SessionReady,
    StacksReported,
)
from kafka_eos.runtime.worker.tcp_connections import WorkerHello
from kafka_eos.runtime.worker.worker_ticket import WorkerTicket

_STACKS = 2.5
"""Most seconds until a worker has sent its stacks, which the worker itself waits for 2 seconds."""
_LAST = 1.0
"""Most seconds for the thread of a worker that has ended."""
_PAUSE = 10.0
"""Least seconds between two launches of a worker that is left out: its place may end each at once."""
_LOG = logging.getLogger(__name__)
_hello = msgspec.msgpack.Decoder(WorkerHello)


class RemoteWorker(WorkerHandle):
    """A launched worker, which connects later, and once."""

    def __init__(self, number: int, subtask: int, task: WorkerTask, is_successor: bool, pool: RemotePool) -> None:
        """``is_successor``: whether it prefers the machine of the worker that it replaces."""
        super().__init__(number, subtask)
        self.task = task
        self.is_successor = is_successor
        self.launched_at = time.monotonic()
        self.was_ready = False
        """Whether it has opened the state of its subtask, which its machine has since."""
        self.has_acknowledged = False
        """Whether it has acknowledged a checkpoint."""
        self.was_given_up = False
        """Whether it was ended from here: then it is unknown how its machine is."""
        self._events = pool.events
        self._lock = threading.Lock()
        self._channel: TcpChannel | None = None
        self._hello: WorkerHello | None = None
        self._thread: threading.Thread | None = None
        self._over = False
        self._stacks: queue.SimpleQueue[str] = queue.SimpleQueue()

    @property
    def address(self) -> TcpAddress | None:
        """Return where it listens for other workers; None until it has connected."""
        return None if self._hello is None else TcpAddress(self._hello.host, self._hello.port)

    @property
    def local_state(self) -> Sequence[int]:
        """Return the sizes of state files that its machine had when it connected."""
        return () if self._hello is None else self._hello.local_state

    @property
    def pid(self) -> int:
        return 0 if self._hello is None else self._hello.pid

    @property
    def alive(self) -> bool:
        return not self._over and self.task.alive

    @property
    def is_connected(self) -> bool:
        return self._hello is not None

    @property
    def is_placed(self) -> bool:
        return self.task.is_placed

    @property
    def io_bytes(self) -> int:
        return self.task.io_bytes

    def send(self, message: ControlMessage) -> None:
        try:
            if self._channel is None:
                raise ConnectionError("it has not connected")
            self._channel.send(message)
        except OSError as error:
            how = self.task.describe_end() or f"cannot be reached: {error}"
            raise WorkerDied(f"worker {self.pid} {how}", [self.number]) from error

    def stacks(self) -> str:
        with suppress(WorkerDied, queue.Empty):
            self.send(ReportStacks(session=0))
            return self._stacks.get(timeout=_STACKS)
        return (
            f"worker {self.pid} did not respond within {_STACKS:g} s: it is stopped or unreachable, or a C call holds "
            "the GIL"
        )

    def kill(self) -> None:
        self.was_given_up = self.was_given_up or not self._over
        self._end("was given up")
        self.task.kill()  # another thread may have ended it, and may not have finished

    def connect(self, hello: WorkerHello, channel: TcpChannel) -> None:
        """Take the connection of this worker. A second one, and one of a worker that was given up, are closed."""
        with self._lock:
            refused = self._over or self._hello is not None
            if not refused:
                self._hello, self._channel = hello, channel
        if refused:
            _LOG.warning(
                "refused worker %s (process %s): it connected a second time, or too late", self.subtask, hello.pid
            )
            channel.release()
            return
        self._thread = threading.Thread(
            target=self._listen, args=(channel,), daemon=True, name=f"worker-{self.subtask}"
        )
        self._thread.start()
        self._events.put(WorkerConnected(self.number))

    def join(self) -> None:
        """Wait for the thread of an ended worker. One that calls OpenSSL while the process ends would crash it."""
        if self._thread is not None:
            self._thread.join(_LAST)

    def lose(self) -> None:
        """Handle that the task has ended by itself, which may be before it has connected."""
        self._end(self.task.describe_end() or "has ended")

    def _listen(self, channel: TcpChannel) -> None:
        how = "closed its connection"
        try:
            for message in channel.receive_as_supervisor():
                if isinstance(message, StacksReported):
                    self._stacks.put(message.stacks)
                else:
                    self.was_ready = self.was_ready or isinstance(message, SessionReady)
                    self.has_acknowledged = self.has_acknowledged or isinstance(message, AcknowledgeCheckpoint)
                    self._events.put(WorkerMessage(message, self.number))
        except (OSError, msgspec.DecodeError) as error:
            how = f"lost its connection: {error}"
        finally:
            channel.release()
        self._end(self.task.describe_end() or how)

    def _end(self, how: str) -> None:
        with self._lock:
            if self._over:
                return
            self._over = True
        if self._channel is not None:
            self._channel.close()
        self.task.kill()
        self._events.put(WorkerExited(self.number, how))


class RemotePool(WorkerPool):
    """Workers that connect to a port of this process.

    ``host``: the address of this machine on which it listens. ``advertised``: the address at which workers reach it, if
    that is another one.
    """

    def __init__(self, workers: int, host: str, ports: range, advertised: str = "") -> None:
        from kafka_eos.runtime.transport.self_signed import create_credentials  # needs an extra

        super().__init__()
        self._advertised = advertised or host
        self._credentials = create_credentials()
        self._numbers = itertools.count(1)
        self._wanted = workers
        self._workers: dict[int, RemoteWorker] = {}
        """All launched workers by subtask."""
        self._resumed: RestorePoint | None = None
        """What the latest attempt restores."""
        self._in_attempt = 0
        """The number of workers that belong to the attempt: those with the first subtasks."""
        self._leaving: set[int] = set()
        """The numbers of workers whose place is to be shut down."""
        self._launching = threading.Lock()
        tls = self._credentials.make_server_tls()
        self._listener = TcpListener(host, ports, tls, self._find_secret, self._accept)

    @abstractmethod
    def launch(self, subtask: int, ticket: WorkerTicket, replaced: WorkerTask | None) -> WorkerTask:
        """Launch a worker. When its task ends, ``on_task_ended`` is called with the ticket's number.

        ``replaced``: the task whose machine has the state; None if any machine is as good.
        """

    @property
    def workers(self) -> Sequence[RemoteWorker]:
        return [self._workers[subtask] for subtask in range(self._in_attempt)]

    @property
    def is_remote(self) -> bool:
        return True

    def start_workers(self) -> None:
        for subtask in range(self._wanted):
            worker = self._workers.get(subtask)
            if worker is not None and worker.number in self._leaving:
                worker.kill()
            if worker is None or not worker.alive:
                self._start(subtask)
        self._in_attempt = self._wanted

    def leave_out_missing(self) -> None:
        connected = [subtask for subtask in range(self._wanted) if self._workers[subtask].is_connected]
        with self._launching:
            old, self._workers = self._workers, {}
            for before, subtask in keep_subtasks(connected, self._wanted).items():
                old[before].subtask = subtask
                self._workers[subtask] = old[before]
        self._in_attempt = len(connected)

    def replace_left_out(self) -> None:
        for subtask in range(self._in_attempt, self._wanted):
            worker = self._workers[subtask]
            if not worker.alive and time.monotonic() - worker.launched_at > _PAUSE:
                self._start(subtask)

    def expect_restore(self, resumed: RestorePoint) -> None:
        self._resumed = resumed

    def list_state_files(self, subtask: int, parallelism: int) -> list[int]:
        """Return the sizes of the state files that a subtask opens in the latest attempt."""
        return [] if self._resumed is None else self._resumed.list_state_files(subtask, parallelism)

    def assign_subtasks(self) -> None:
        new = [worker for worker in self.workers if not worker.was_ready]
        local = {worker.subtask: worker.local_state for worker in new}
        opened = {subtask: self.list_state_files(subtask, self._in_attempt) for subtask in local}
        matched = match_local_state(local, opened)
        with self._launching:
            for worker in new:
                worker.subtask = matched[worker.subtask]
                self._workers[worker.subtask] = worker

    def find_change(self) -> str:
        left_out = [self._workers[subtask] for subtask in range(self._in_attempt, self._wanted)]
        if any(worker.is_connected and worker.alive for worker in left_out):
            return "more workers have connected: the next attempt divides the work among all of them"
        leaving = [worker.subtask for worker in self.workers if worker.number in self._leaving]
        if leaving:
            return f"the place of worker {', '.join(map(str, leaving))} is to be shut down: the next attempt moves it"
        return ""

    def kill_all(self) -> None:
        for worker in self._workers.values():
            worker.kill()

    def _start(self, subtask: int) -> None:
        port = self._listener.address.port
        ticket = WorkerTicket(next(self._numbers), self._advertised, port, self._credentials)
        replaced = self._find_replaced(subtask)
        with self._launching:  # it may connect before ``launch`` returns
            task = self.launch(subtask, ticket, replaced)
            self._workers[subtask] = RemoteWorker(ticket.number, subtask, task, replaced is not None, self)

    def _find_replaced(self, subtask: int) -> WorkerTask | None:
        """Return the task of the worker that is replaced; None if any machine is as good as its machine.

        A worker that did not respond, or that never opened its state, may have been ended by its machine. So may a
        second one there that ended before it acknowledged a checkpoint. A machine that is to be shut down is not
        awaited.
        """
        worker = self._workers.get(subtask)
        if worker is None or worker.was_given_up or not worker.was_ready or worker.number in self._leaving:
            return None
        return worker.task if worker.has_acknowledged or not worker.is_successor else None

    def on_task_ended(self, number: int) -> None:
        """Handle that the task of a worker has ended by itself."""
        if (worker := self._find(number)) is not None:
            worker.lose()

    def on_leaving(self, number: int) -> None:
        """Handle that the place of a worker is to be shut down: after a checkpoint it runs elsewhere."""
        self._leaving.add(number)

    def _find_secret(self, hello: bytes, is_over: Callable[[], bool]) -> bytes:
        return self._credentials.secret

    def _accept(self, hello: bytes, sock: DataSocket) -> None:
        """Give a new connection to its worker. One of a worker that has been replaced is closed."""
        channel = TcpChannel(sock)
        try:
            known = _hello.decode(hello)
        except msgspec.DecodeError as error:
            _LOG.warning("a worker of another version was refused: %s", error)
            channel.release()
            return
        if (worker := self._find(known.number)) is None:
            _LOG.warning("refused process %s: it is not a worker of this job any more", known.pid)
            channel.release()
        else:
            worker.connect(known, channel)

    def _find(self, number: int) -> RemoteWorker | None:
        with self._launching:
            return next((worker for worker in self._workers.values() if worker.number == number), None)

    def start_sessions(self, make_start: MakeStart) -> None:
        """Begin a session in every worker. Its connections have a secret of their own."""
        addresses = {worker.subtask: worker.address for worker in self.workers}
        secret = os.urandom(len(self._credentials.secret))
        for worker in self.workers:
            peers = tuple(subtask for subtask in addresses if subtask != worker.subtask)
            listening = tuple((at.host, at.port) for at in map(addresses.get, peers) if at is not None)
            start = make_start(worker.subtask, peers)
            worker.send(msgspec.structs.replace(start, addresses=listening, secret=secret))

    def close(self) -> None:
        super().close()
        self._listener.close()
        for worker in [*self._workers.values()]:
            worker.join()
