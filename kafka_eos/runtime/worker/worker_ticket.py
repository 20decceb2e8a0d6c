"""The ticket of a worker that is launched elsewhere: its way to its supervisor.

Rule: little is imported here, because each task of Spark does so before it starts a worker.
"""

from __future__ import annotations

import msgspec

from kafka_eos.runtime.transport.credentials import Credentials


class WorkerTicket(msgspec.Struct, frozen=True):
    """A worker's way to its supervisor, and its proof that the supervisor has started it."""

    number: int
    """Identifies the worker in its pool."""
    host: str
    port: int
    credentials: Credentials
    listen_host: str = ""
    """The address at which other workers reach this one; "": the one from which it reaches the supervisor."""
    listen_ports: tuple[int, int] = (0, 1)
    """The first port that it may listen on, and the one after the last; 0 stands for any."""
