"""Channels between workers over a network that does harm: it cuts, holds back, delays, and writes rubbish."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kafka_eos.runtime.exchange.network import Arrival, Network, RowsArrived
from kafka_eos.runtime.transport.data_socket import DataSocket
from tests.waiting import PATIENCE, eventually
from tests.wires import FaultProxy, dial_in, listen

WINDOW = 100_000
ROWS = bytes(10_000)


class Line:
    """Worker 0, which sends to worker 1 through a proxy."""

    def __init__(self, directory: Path, closing: ExitStack) -> None:
        arrived: queue.SimpleQueue[DataSocket] = queue.SimpleQueue()
        self.proxy = FaultProxy(listen("ipv4", arrived, closing).address)
        closing.callback(self.proxy.close)
        ours = dial_in(self.proxy.address)
        self.sender = Network({1: ours}, 1, WINDOW, directory / "sender")
        self.receiver = Network({0: arrived.get(timeout=PATIENCE)}, 1, WINDOW, directory / "receiver")
        for network, place in ((self.sender, "sender"), (self.receiver, "receiver")):
            (directory / place).mkdir()
            closing.callback(network.close)
        self.arrived: list[Arrival] = []

    def pump(self, process: bool = True) -> int:
        """Let both ends do what they can; how much has arrived until now."""
        self.sender.pump(0.001)
        for arrival in self.receiver.pump(0.001):
            self.arrived.append(arrival)
            if process and isinstance(arrival, RowsArrived):
                self.receiver.credit(0, 0, len(arrival.frame))
        return len(self.arrived)


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    with ExitStack() as closing:
        yield Line(tmp_path, closing)


def lost(network: Network) -> Callable[[], bool]:
    def is_lost() -> bool:
        network.pump(0.001)
        return network.find_lost_peer(time.monotonic()) is not None

    return is_lost


def test_a_cut_is_seen_at_both_ends(line: Line) -> None:
    line.sender.send(0, 1, ROWS)
    eventually(lambda: line.pump() == 1, "the rows arrive")
    assert line.sender.find_lost_peer(time.monotonic()) is None

    line.proxy.cut()

    eventually(lost(line.sender), "the sender sees it")
    eventually(lost(line.receiver), "the receiver sees it")
    assert (line.sender.find_lost_peer(time.monotonic()), line.receiver.find_lost_peer(time.monotonic())) == (1, 0)
    assert line.sender.find_lost_peer(time.monotonic() - PATIENCE) is None, "but not for so long"


def test_what_is_held_back_bounds_the_sender_and_arrives_in_order_when_it_goes_on(line: Line) -> None:
    """Half-open: each end believes that the other is there. Nothing grows but what waits on the sender's disk."""
    line.proxy.freeze()
    frames = [bytes([n]) * 10_000 for n in range(60)]
    for frame in frames:
        line.sender.send(0, 1, frame)
    for _ in range(20):
        line.pump()

    assert line.arrived == [] and not line.sender.room(0)
    line.proxy.thaw()
    eventually(lambda: line.pump() == len(frames), "all arrive")
    assert [each.frame for each in line.arrived if isinstance(each, RowsArrived)] == frames
    eventually(lambda: line.pump() and line.sender.room(0), "there is room again")


def test_a_slow_receiver_slows_down_its_sender(line: Line) -> None:
    for _ in range(60):
        line.sender.send(0, 1, ROWS)
    eventually(lambda: line.pump(process=False) * len(ROWS) == WINDOW, "a window is on its way")
    for _ in range(20):
        line.pump(process=False)

    assert len(line.arrived) * len(ROWS) == WINDOW
    assert len(line.proxy.recorded) < WINDOW * 1.1
    for arrival in line.arrived:
        assert isinstance(arrival, RowsArrived)
        line.receiver.credit(0, 0, len(arrival.frame))
    eventually(lambda: line.pump() == 60, "the rest arrives")


def test_a_delay_changes_no_order(line: Line) -> None:
    line.proxy.delay = 0.01
    frames = [bytes([n]) * 30_000 for n in range(10)]
    for number, frame in enumerate(frames):
        line.sender.send(0, 1, frame)
        line.sender.send_barrier(0, 1, number, aligned=True)

    eventually(lambda: line.pump() == 20, "all arrive")
    assert [each.frame for each in line.arrived[::2] if isinstance(each, RowsArrived)] == frames


def test_rubbish_ends_the_connection_and_is_taken_for_nothing_else(line: Line) -> None:
    line.proxy.inject(b"\xff" * 5000)

    eventually(lost(line.receiver), "the receiver gives up the connection")
    assert line.pump() == 0
