"""The brokers of one cluster: their addresses, the coordinators, and which of them respond.

Rule: each request is attempted once. An address that fails is forgotten, so that the next attempt uses another one. The
caller decides whether to retry. All connections lead to one cluster. A broker of another cluster counts as
unreachable, because it does not know the transactions of this one.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from typing import Any, Final, TypeAlias, TypeVar

from msgspec import Struct

from kafka_eos.connectors.kafka.client.access_rights import describe_missing
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc.connection import BrokerConnection, ConnectionRejected
from kafka_eos.connectors.kafka.rpc.error_codes import FORBIDDEN, name_of
from kafka_eos.connectors.kafka.rpc.messages.cluster import find_coordinator, metadata
from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.connectors.kafka.rpc.security import Security, security
from kafka_eos.core.errors import ConfigError, Retryable

A = TypeVar("A")
Address: TypeAlias = tuple[str, int]

_PORT: Final = 9092


class CoordinatorKey(Struct, frozen=True):
    """The group or transactional id whose coordinator is wanted."""

    kind: int
    key: str

    def __str__(self) -> str:
        return repr(self.key)


Destination: TypeAlias = CoordinatorKey | int | None
"""The destination of a request: a coordinator, a broker by node id, or any broker."""


class OtherCluster(Retryable):
    """A broker of another cluster was reached. ``cluster_id``: the id of that cluster."""

    def __init__(self, message: str, cluster_id: str) -> None:
        super().__init__(message)
        self.cluster_id = cluster_id


class Brokers:
    """The connections to the brokers of one cluster. Thread-safe; connects on the first request."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._bootstrap = tuple(_address(one) for one in cluster.bootstrap.split(","))
        self._idle: dict[Address, list[BrokerConnection]] = {}
        self._busy: set[BrokerConnection] = set()
        self._changing = threading.Lock()
        self._nodes: dict[int, Address] = {}
        self._coordinators: dict[CoordinatorKey, int] = {}
        self._failed: dict[Address, float] = {}
        self.welcome = False
        """True if a broker has ever accepted this client's login."""
        self.cluster_id: str | None = None
        """The id of the expected cluster; without one, of the first cluster that was reached; None before that."""
        self.joined = False
        """True once a broker of that cluster was reached."""
        self._expected: str | None = None

    def close(self) -> None:
        """Close all connections, which also ends the waits of other threads."""
        with self._changing:
            open_connections = self._take_all()
        _close(*open_connections)

    def _take_all(self) -> tuple[list[BrokerConnection], set[BrokerConnection]]:
        """Return the idle and the busy connections, and forget them. The caller holds the lock."""
        idle, self._idle = list(chain.from_iterable(self._idle.values())), {}
        busy, self._busy = self._busy, set()
        return idle, busy

    def expect_cluster(self, cluster_id: str) -> None:
        """Use brokers of this cluster only, whichever one was reached first. Raise OtherCluster if another is expected.

        An address may have led to another cluster for a moment. The addresses learned from it are dropped.
        """
        with self._changing:
            if self._expected is not None and self._expected != cluster_id:
                raise OtherCluster(f"this client works with the Kafka cluster {self._expected} only", self._expected)
            self._expected = cluster_id
            if self.cluster_id == cluster_id:
                return
            self.cluster_id = cluster_id
            self.joined = False
            self._nodes = {}
            self._coordinators = {}
            self._failed = {}
            open_connections = self._take_all()
        _close(*open_connections)

    def ask(self, request: Request[A], place: Destination, until: float, proof: Request[int] | None = None) -> A:
        """Return the response of ``place``. Raise Retryable, ConnectionRejected or ConfigError if there is none.

        ``proof``: a write that the same broker must complete first, which shows that its response is current.
        """
        if isinstance(place, CoordinatorKey):
            place = self._coordinator(place, until)
        if place is None:
            return self._asked(request, self._any(), until, proof)
        try:
            return self._asked(request, self._where(place, until), until, proof)
        except Retryable:
            self.learn(known for known in self._nodes.items() if known[0] != place)  # the broker may have moved
            raise

    def forget(self, place: Destination) -> None:
        """Look up this coordinator again before the next request to it."""
        if isinstance(place, CoordinatorKey):
            self._coordinators.pop(place, None)

    def learn(self, nodes: Iterable[tuple[int, Address]]) -> None:
        self._nodes = dict(nodes)  # never changed in place: other threads iterate over it

    def _coordinator(self, of: CoordinatorKey, until: float) -> int:
        node = self._coordinators.get(of)
        if node is None:
            request = find_coordinator(of.kind, of.key)
            found = self._asked(request, self._any(), until)
            if found.error in FORBIDDEN:
                raise ConfigError(not_allowed(self._cluster, request, found.error))
            if found.error:
                raise Retryable(f"FindCoordinator of {of}: {name_of(found.error)}")
            node = self._coordinators[of] = found.node
            self.learn((self._nodes | {node: (found.host, found.port)}).items())
        return node

    def _where(self, node: int, until: float) -> Address:
        if node not in self._nodes:
            self.learn(self._asked(metadata([]), self._any(), until).brokers.items())
        try:
            return self._nodes[node]
        except KeyError as error:
            raise Retryable(f"broker {node} is not a member of the cluster now") from error

    def _any(self) -> Address:
        """Return an address that has not failed, or the one that failed longest ago; prefer connected ones."""
        known = {*self._nodes.values(), *self._bootstrap}
        return min(known, key=lambda at: (self._failed.get(at, 0.0), not self._idle.get(at), random.random()))  # noqa: S311 - spreads load

    def _asked(self, request: Request[A], at: Address, until: float, proof: Request[int] | None = None) -> A:
        try:
            with self._connection(at, until) as connection:
                if proof is not None:
                    self._expect_done(proof, connection.send(proof, until))
                answer = connection.send(request, until)
        except (Retryable, ConnectionRejected):
            self._failed[at] = time.monotonic()
            raise
        self._failed.pop(at, None)
        self.welcome = True
        return answer

    def _expect_done(self, proof: Request[int], error: int) -> None:
        if error in FORBIDDEN:
            raise ConfigError(not_allowed(self._cluster, proof, error))
        if error:
            raise Retryable(f"the broker did not prove that it is current: {proof.name}: {name_of(error)}")

    @contextmanager
    def _connection(self, at: Address, until: float) -> Iterator[BrokerConnection]:
        """Yield a connection that no other thread uses: each thread has its own request in flight."""
        taken = self._taken(at)
        connection = taken or BrokerConnection(*at, self._security(), until)
        with self._changing:
            self._busy.add(connection)
        whole = False
        try:
            if taken is None:
                self._expect_same_cluster(connection, until)
            yield connection
            whole = True
        finally:
            with self._changing:
                kept = whole and connection in self._busy
                self._busy.discard(connection)
                if kept:
                    self._idle.setdefault(at, []).append(connection)
            if not kept:
                connection.close()

    def _expect_same_cluster(self, connection: BrokerConnection, until: float) -> None:
        """Raise OtherCluster if the broker belongs to another cluster than the expected one, or the first one.

        A broker of another cluster may take over a name or a port at any time.
        """
        found = connection.send(metadata([]), until).cluster_id
        with self._changing:
            self.cluster_id = found if self.cluster_id is None else self.cluster_id
        if found != self.cluster_id:
            raise OtherCluster(
                f"{connection} is a broker of the Kafka cluster {found}, but this client works with the cluster "
                f"{self.cluster_id}. Check which brokers {self._cluster.bootstrap} leads to",
                found,
            )
        self.joined = True

    def _taken(self, at: Address) -> BrokerConnection | None:
        with self._changing:
            idle = self._idle.pop(at, [])
            usable = [connection for connection in idle if connection.usable]
            taken = usable.pop() if usable else None
            self._idle[at] = usable
        for connection in set(idle).difference(usable, [taken]):
            connection.close()
        return taken

    def _security(self) -> Security:
        """Return the settings for a new connection.

        If they were valid before, an error is temporary: the files are probably being rewritten.
        """
        try:
            return security(self._cluster)
        except ConfigError as error:
            if self.welcome:
                raise Retryable(str(error)) from error
            raise


def not_allowed(where: Cluster, request: Request[Any], code: int) -> str:
    """Return the message for a request that the user is not permitted to make."""
    return (
        f"Kafka at {where.bootstrap} refuses {request.name} ({name_of(code)}): "
        f"{describe_missing(where, request.needs, code)}"
    )


def _close(idle: Iterable[BrokerConnection], busy: Iterable[BrokerConnection]) -> None:
    for connection in busy:
        connection.end()
    for connection in idle:
        connection.close()


def _address(text: str) -> Address:
    """Parse ``host:port`` as librdkafka does: the port and a leading protocol are optional."""
    host, colon, port = text.rpartition("://")[2].rpartition(":")
    if not colon or port.endswith("]"):
        host, port = text.rpartition("://")[2], str(_PORT)
    if not port.isdecimal():
        raise ConfigError(f"bootstrap servers: {text!r} is not host:port")
    return host.strip("[]"), int(port)
