"""The connections of one worker: the control channel to its supervisor, and sockets to the workers of a session.

Rule: sockets to other workers belong to one session, so that rows of an old session reach no worker.
"""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence

from kafka_eos.runtime.transport.data_socket import DataSocket
from kafka_eos.runtime.worker.control_messages import (
    ControlMessage,
    StartSession,
    ToWorker,
    receive_as_worker,
    send,
)


class WorkerConnections(ABC):
    """A worker's end of its connections to the supervisor and to the other workers."""

    @abstractmethod
    def send(self, message: ControlMessage) -> None:
        """Send a message to the supervisor. Several threads may call it. Raises OSError if the supervisor is gone."""

    @abstractmethod
    def receive(self) -> Iterator[ToWorker]:
        """Yield messages from the supervisor until it is gone."""

    @abstractmethod
    def connect_peers(self, start: StartSession, is_cancelled: Callable[[], bool]) -> Mapping[int, DataSocket]:
        """Return a socket to each peer of a session, by subtask. Called once for each StartSession.

        Raises EnvironmentFailed if a peer cannot be reached, and RestartFromCheckpoint when ``is_cancelled``.
        """


class UnixConnections(WorkerConnections):
    """Connections within one machine. The supervisor creates all sockets, and sends those of a session with it."""

    def __init__(self, control: socket.socket) -> None:
        self._control, self._lock = control, threading.Lock()
        self._received: Sequence[socket.socket] = ()
        """The sockets that came with the latest StartSession."""

    def send(self, message: ControlMessage) -> None:
        with self._lock:
            send(self._control, message)

    def receive(self) -> Iterator[ToWorker]:
        for message, sockets in receive_as_worker(self._control):
            if isinstance(message, StartSession):
                self._received = sockets
            yield message

    def connect_peers(self, start: StartSession, is_cancelled: Callable[[], bool]) -> Mapping[int, DataSocket]:
        sockets, self._received = self._received, ()
        return dict(zip(start.peers, sockets, strict=True))
