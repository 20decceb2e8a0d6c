"""Channels over real sockets: first in, first out; credits bound what is on the way; barriers may overtake."""

from __future__ import annotations

import os
import random
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kafka_eos.core.records import Watermark
from kafka_eos.runtime.exchange.network import Arrival, BarrierArrived, Network, RowsArrived, WatermarkArrived
from tests.wires import KINDS, connect

WINDOW = 10_000
Pair = tuple[Network, Network]


def pair(
    closing: ExitStack, edges: int = 1, window: int = WINDOW, disks: Sequence[Path] = (), kind: str = "unix"
) -> Pair:
    """Workers 0 and 1, connected."""
    one, other = connect(kind, closing)
    disks = disks or [Path(closing.enter_context(TemporaryDirectory())) for _ in range(2)]
    for disk in disks:
        disk.mkdir(exist_ok=True)
    networks = Network({1: one}, edges, window, disks[0]), Network({0: other}, edges, window, disks[1])
    for network in networks:
        closing.callback(network.close)
    return networks


@pytest.fixture(params=KINDS)
def connected(request: pytest.FixtureRequest) -> Iterator[Callable[..., Pair]]:
    with ExitStack() as closing:
        yield lambda **options: pair(closing, kind=request.param, **options)


def arrivals(network: Network, sender: Network, wanted: int, process: bool = True) -> list[Arrival]:
    """Pump both ends until ``wanted`` things have arrived, processing rows at once."""
    found: list[Arrival] = []
    for _ in range(10_000):
        sender.pump(0)
        for arrival in network.pump(0):
            found.append(arrival)
            if process and isinstance(arrival, RowsArrived):
                network.credit(arrival.edge, arrival.sender, len(arrival.frame))
        if len(found) >= wanted:
            return found
    raise AssertionError(f"{len(found)} of {wanted} arrived")


def settle(*networks: Network) -> list[Arrival]:
    """Pump until nothing moves; what has arrived at the last one."""
    found: list[Arrival] = []
    for _ in range(50):
        for network in networks:
            arrived = network.pump(0)
        found += arrived
    return found


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1), st.none() | st.integers(0, 30_000), st.booleans()), min_size=1, max_size=60)
)
def test_a_channel_is_first_in_first_out(items: list[tuple[int, int | None, bool]]) -> None:
    """Whatever the sizes: frames larger than the window, empty ones, barriers between."""
    with ExitStack() as closing:
        sender, receiver = pair(closing, edges=2)
        sent: dict[int, list[Arrival]] = {0: [], 1: []}
        for number, (edge, size, aligned) in enumerate(items):
            if size is None:
                sender.send_barrier(edge, 1, number, aligned)
                sent[edge].append(BarrierArrived(edge, 0, number, aligned))
            else:
                frame = random.Random(number).randbytes(size)
                sender.send(edge, 1, frame)
                sent[edge].append(RowsArrived(edge, 0, frame))

        arrived = arrivals(receiver, sender, len(items))

        assert {edge: [a for a in arrived if a.edge == edge] for edge in sent} == sent


@pytest.mark.parametrize(
    "watermark", [Watermark(), Watermark(-1), Watermark(0, idle=True), Watermark(2**63 - 1), Watermark(idle=True)]
)
def test_a_watermark_comes_behind_the_rows_before_it(connected: Callable[..., Pair], watermark: Watermark) -> None:
    sender, receiver = connected()
    sender.send(0, 1, bytes(WINDOW))
    sender.send(0, 1, b"waits for credit")
    sender.send_watermark(0, 1, watermark)

    assert arrivals(receiver, sender, 3)[1:] == [
        RowsArrived(0, 0, b"waits for credit"),
        WatermarkArrived(0, 0, watermark),
    ]


def test_a_barrier_that_overtakes_leaves_watermarks_where_they_are_and_returns_rows_alone(
    connected: Callable[..., Pair],
) -> None:
    sender, receiver = connected()
    sender.send(0, 1, b"rows")
    sender.send_watermark(0, 1, Watermark(5))
    sender.send(0, 1, bytes(2 * WINDOW))
    sender.send_watermark(0, 1, Watermark(6))

    assert list(sender.overtake(0, 1, 1)) == [b"rows", bytes(2 * WINDOW)]
    arrived = arrivals(receiver, sender, 5)
    assert [type(each) for each in arrived] == [
        BarrierArrived,
        RowsArrived,
        WatermarkArrived,
        RowsArrived,
        WatermarkArrived,
    ]


@pytest.mark.limits(socket_read_bytes=1 << 20)
def test_both_directions_at_once_with_more_than_the_kernel_takes(connected: Callable[..., Pair]) -> None:
    one, other = connected(window=64 << 20)
    big = bytes(6 << 20)
    for _ in range(3):
        one.send(0, 1, big)
        other.send(0, 0, big)

    got: list[list[Arrival]] = [[], []]
    for _ in range(100_000):
        for number, network in enumerate((one, other)):
            got[number] += network.pump(0)
        if len(got[0]) == len(got[1]) == 3:
            break
    assert [[len(a.frame) for a in each if isinstance(a, RowsArrived)] for each in got] == [[6 << 20] * 3] * 2


def test_what_is_not_processed_bounds_what_is_on_the_way(connected: Callable[..., Pair]) -> None:
    """The window and no more arrives; the rest waits at the sender, who is told to make no more."""
    sender, receiver = connected()
    assert sender.room(0)
    for _ in range(100):
        sender.send(0, 1, bytes(1000))

    arrived = settle(sender, receiver)

    assert len(arrived) * 1000 == WINDOW
    assert not sender.room(0)
    receiver.credit(0, 0, 1000)
    assert len(settle(sender, receiver)) == 1
    arrived += arrivals(receiver, sender, 0)
    for _ in range(11):
        receiver.credit(0, 0, 1000)
    assert 0 < len(settle(sender, receiver)) <= 11


def test_a_frame_larger_than_the_window_passes_alone(connected: Callable[..., Pair]) -> None:
    sender, receiver = connected()
    for _ in range(2):
        sender.send(0, 1, bytes(WINDOW * 3))

    assert len(settle(sender, receiver)) == 1
    receiver.credit(0, 0, WINDOW * 3)
    assert len(settle(sender, receiver)) == 1
    receiver.credit(0, 0, WINDOW * 3)
    settle(receiver, sender)
    assert sender.room(0)


def test_one_exchange_without_credit_does_not_hold_up_another(connected: Callable[..., Pair]) -> None:
    sender, receiver = connected(edges=2)
    for _ in range(100):
        sender.send(0, 1, bytes(1000))
    sender.send(1, 1, b"other")

    assert RowsArrived(1, 0, b"other") in settle(sender, receiver)
    assert (sender.room(0), sender.room(1)) == (False, True)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 4000), max_size=40), st.integers(0, 40), st.integers(0, 20))
def test_overtaking_returns_exactly_what_had_not_left(sizes: list[int], pumps: int, after: int) -> None:
    """Before the barrier plus overtaken is everything that was sent before it, in order; nothing is sent twice."""
    with ExitStack() as closing:
        sender, receiver = pair(closing, edges=2)
        before = [number.to_bytes(2, "big") + bytes(size) for number, size in enumerate(sizes)]
        early: list[Arrival] = []
        for number, frame in enumerate(before):
            sender.send(0, 1, frame)
            sender.send(1, 1, b"other exchange")
            if number < pumps:
                sender.pump(0)
                early += receiver.pump(0)

        overtaken = list(sender.overtake(0, 1, 7))
        later = [b"later" + bytes([n]) for n in range(after)]
        for frame in later:
            sender.send(0, 1, frame)
        for arrival in early:
            assert isinstance(arrival, RowsArrived)
            receiver.credit(arrival.edge, 0, len(arrival.frame))
        everything = early + arrivals(receiver, sender, 2 * len(before) + 1 + after - len(early))

        channel = [a for a in everything if a.edge == 0]
        at = channel.index(BarrierArrived(0, 0, 7, aligned=False))
        assert [a.frame for a in channel[:at] if isinstance(a, RowsArrived)] + overtaken == before
        assert [a.frame for a in channel[at + 1 :] if isinstance(a, RowsArrived)] == overtaken + later


def test_a_barrier_that_overtakes_drops_older_ones(connected: Callable[..., Pair]) -> None:
    sender, receiver = connected()
    for epoch in range(3):
        for _ in range(8):
            sender.send(0, 1, bytes(1000))
        sender.send_barrier(0, 1, epoch, aligned=False)

    assert len(list(sender.overtake(0, 1, 3))) == 24
    found = arrivals(receiver, sender, 25)
    settle(sender, receiver)

    assert [a.epoch for a in found if isinstance(a, BarrierArrived)] == [3]


def test_a_barrier_that_may_not_overtake_says_so(connected: Callable[..., Pair]) -> None:
    sender, receiver = connected()
    sender.send_barrier(0, 1, 1, aligned=True)
    sender.send_barrier(0, 1, 2, aligned=False)

    assert settle(sender, receiver) == [BarrierArrived(0, 0, 1, True), BarrierArrived(0, 0, 2, False)]


@pytest.mark.parametrize("sent", [0, 3])
def test_the_death_of_a_peer_is_silent(connected: Callable[..., Pair], sent: int) -> None:
    """The supervisor ends the session; until then the network goes on with those who live."""
    sender, receiver = connected()
    for _ in range(sent):
        sender.send(0, 1, bytes(1000))
    receiver.close()

    for _ in range(20):
        sender.send(0, 1, bytes(5000))
        sender.send_barrier(0, 1, 1, aligned=True)
        assert sender.pump(0) == []
    sender.credit(0, 1, 100)
    sender.overtake(0, 1, 2)
    assert sender.pump(0.001) == []


def test_what_a_peer_said_before_its_death_arrives(connected: Callable[..., Pair]) -> None:
    sender, receiver = connected()
    sender.send(0, 1, b"last words")
    sender.pump(0)
    sender.close()

    assert settle(receiver) == [RowsArrived(0, 0, b"last words")]


@pytest.mark.limits(spill_file_bytes=64 << 20)
def test_what_waits_for_credit_beyond_a_window_is_on_the_disk(connected: Callable[..., Pair], tmp_path: Path) -> None:
    """And leaves in its order, with the barriers in their places."""
    sender, receiver = connected(disks=(tmp_path / "sender", tmp_path / "receiver"))
    frames = [bytes([n]) * 1000 for n in range(100)]
    for frame in frames[:50]:
        sender.send(0, 1, frame)
    sender.send_barrier(0, 1, 1, aligned=True)
    for frame in frames[50:]:
        sender.send(0, 1, frame)

    assert 70_000 < sum(file.stat().st_size for file in (tmp_path / "sender").iterdir()) <= 90_000
    arrived = arrivals(receiver, sender, 101)
    assert [item.frame for item in arrived if isinstance(item, RowsArrived)] == frames
    assert arrived[50] == BarrierArrived(0, 0, 1, aligned=True)
    assert list((tmp_path / "sender").iterdir()) == []


def test_a_closed_network_leaves_no_file_open(tmp_path: Path) -> None:
    def open_files() -> list[str]:
        paths = [os.path.realpath(each) for each in os.scandir("/proc/self/fd")]
        return [path for path in paths if path.startswith(str(tmp_path))]

    with ExitStack() as closing:
        sender, _ = pair(closing, disks=(tmp_path / "sender", tmp_path / "receiver"))
        for n in range(50):
            sender.send(0, 1, bytes([n]) * 1000)
        assert open_files()

    assert open_files() == []


def test_three_workers_hear_each_other_and_know_from_whom() -> None:
    with ExitStack() as closing:
        sockets: dict[int, dict[int, socket.socket]] = {0: {}, 1: {}, 2: {}}
        for a, b in ((0, 1), (0, 2), (1, 2)):
            sockets[a][b], sockets[b][a] = socket.socketpair()
        disks = [Path(closing.enter_context(TemporaryDirectory())) for _ in range(3)]
        networks = [Network(sockets[subtask], 1, WINDOW, disks[subtask]) for subtask in range(3)]
        for network in networks:
            closing.callback(network.close)
        for subtask, network in enumerate(networks):
            for target in sockets[subtask]:
                network.send(0, target, f"{subtask}>{target}".encode())

        heard: list[list[Arrival]] = [[], [], []]
        for _ in range(5):
            for subtask, network in enumerate(networks):
                heard[subtask] += network.pump(0)

        for subtask, arrived in enumerate(heard):
            found = {(a.sender, a.frame) for a in arrived if isinstance(a, RowsArrived)}
            assert found == {(s, f"{s}>{subtask}".encode()) for s in range(3) if s != subtask}
