"""Warm producers on a real broker."""

from __future__ import annotations

import contextlib
import gc
import itertools
import socket
import socketserver
import threading
import uuid
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kafka_eos.connectors.kafka.sink.producer_pool import ProducerPool, WarmProducer
from kafka_eos.core.errors import RestartFromCheckpoint


def test_a_producer_goes_with_its_last_reference_and_not_when_the_garbage_collector_finds_it(bootstrap: str) -> None:
    """Else every epoch leaves its producer's threads and buffers behind, for as long as the collector pleases."""
    gc.disable()
    try:
        warm = WarmProducer(f"warm-{uuid.uuid4().hex[:8]}", 0, {"bootstrap.servers": bootstrap})
        warm.init(30.0)
        alive = weakref.ref(warm)

        del warm

        assert alive() is None
    finally:
        gc.enable()


class _Relay(socketserver.BaseRequestHandler):
    """Hands a connection on to the broker, one thread a direction."""

    broker: tuple[str, int]

    def handle(self) -> None:
        with socket.create_connection(self.broker) as onward:
            back = threading.Thread(target=self._copy, args=(onward, self.request), daemon=True)
            back.start()
            self._copy(self.request, onward)
            onward.shutdown(socket.SHUT_RDWR)
            back.join()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)


@contextmanager
def _serving(server: socketserver.ThreadingTCPServer) -> Iterator[None]:
    """The server is told to end before its socket is closed: else its thread asks that socket for ever, and at once."""
    server.server_activate()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        thread.join()


def test_a_pool_outlives_an_outage_that_is_longer_than_a_start_may_take(bootstrap: str) -> None:
    """What failed while the broker was away is not handed out when it is back."""
    host, _, port = bootstrap.partition(",")[0].rpartition(":")
    relay = type("Relay", (_Relay,), {"broker": (host, int(port))})
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), relay, bind_and_activate=False) as server:
        server.daemon_threads = True
        server.server_bind()  # nobody listens yet: connections are refused
        servers = f"127.0.0.1:{server.socket.getsockname()[1]}"
        slots = itertools.count()
        name = f"warm-{uuid.uuid4().hex[:8]}"
        config = {"bootstrap.servers": servers, "reconnect.backoff.max.ms": 100, "log_level": 0}
        pool = ProducerPool(lambda slot: f"{name}.{slot}", lambda: next(slots), lambda: config, patience=0.5)
        try:
            with pytest.raises(RestartFromCheckpoint, match="within 3 s"):
                pool.acquire(3.0)
            with _serving(server):
                found = [pool.acquire(60.0) for _ in range(6)]

            assert len({warm.transactional_id for warm in found}) == 6
            assert all(warm.producer_id >= 0 for warm in found)
        finally:
            pool.close()
