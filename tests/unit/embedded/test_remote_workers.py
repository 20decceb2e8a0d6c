"""Workers that dial their supervisor: who is let in, how each is spoken to, and what its end is taken for."""

from __future__ import annotations

import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.core.records import RecordCounts
from kafka_eos.embedded import remote_workers
from kafka_eos.embedded.launched_worker import WorkerTask
from kafka_eos.embedded.remote_workers import RemotePool
from kafka_eos.embedded.supervisor_events import WorkerConnected, WorkerExited, WorkerMessage
from kafka_eos.embedded.worker_pool import WorkerDied
from kafka_eos.runtime.epoch_reports import RestorePoint
from kafka_eos.runtime.state.key_groups import key_group_range
from kafka_eos.runtime.transport.tcp_sockets import TcpAddress
from kafka_eos.runtime.worker.control_channel import TcpChannel
from kafka_eos.runtime.worker.control_messages import (
    AcknowledgeCheckpoint,
    ControlMessage,
    EndSession,
    ReportStacks,
    SessionReady,
    StacksReported,
    StartSession,
)
from kafka_eos.runtime.worker.tcp_connections import TcpConnections, WorkerHello
from kafka_eos.runtime.worker.worker_ticket import WorkerTicket
from tests.waiting import PATIENCE, eventually
from tests.wires import dial_in


class Place(WorkerTask):
    """Where a worker runs that the test plays."""

    def __init__(self, subtask: int, ticket: WorkerTicket, replaced: WorkerTask | None) -> None:
        self.subtask, self.ticket, self.replaced = subtask, ticket, replaced
        self.lives, self.kills, self.end = True, 0, ""
        self.dialed: list[TcpConnections] = []
        self.local_state: tuple[int, ...] = ()

    @property
    def alive(self) -> bool:
        return self.lives

    @property
    def io_bytes(self) -> int:
        return 7 + self.subtask

    def describe_end(self) -> str | None:
        return self.end or None

    def kill(self) -> None:
        self.lives, self.kills = False, self.kills + 1

    def dials(self) -> TcpConnections:
        self.dialed.append(TcpConnections(self.ticket, self.local_state))
        return self.dialed[-1]


class PlayedPool(RemotePool):
    """Three workers, whose places a test plays."""

    def __init__(self) -> None:
        super().__init__(3, "127.0.0.1", range(1), advertised="localhost")
        self.places: list[Place] = []
        self.start_workers()

    def launch(self, subtask: int, ticket: WorkerTicket, replaced: WorkerTask | None) -> WorkerTask:
        self.places.append(Place(subtask, ticket, replaced))
        return self.places[-1]

    def drop_local_state(self) -> None:
        pass

    def lose(self, subtask: int, *last: ControlMessage) -> Place:
        """A worker connects, sends its last messages, and ends by itself. Return the place of its successor."""
        place = next(each for each in self.places if each.ticket.number == self._workers[subtask].number)
        theirs = place.dials()
        for message in last:
            theirs.send(message)
        heard = [type(self.hear()) for _ in range(1 + len(last))]
        assert sorted(heard, key=str) == [WorkerConnected, *[WorkerMessage] * len(last)]
        place.lives, place.end = False, "was killed"
        self.on_task_ended(place.ticket.number)
        assert isinstance(self.hear(), WorkerExited)
        self.start_workers()
        return self.places[-1]

    def hear(self) -> Any:
        return self.events.get(timeout=PATIENCE)

    def connect(self, *subtasks: int) -> list[TcpConnections]:
        """These places dial, by default all of them, the last one first."""
        made = []
        for place in reversed([self.places[subtask] for subtask in subtasks or range(3)]):
            made.append(place.dials())
            assert self.hear() == WorkerConnected(place.ticket.number)
        return made[::-1]

    @property
    def layout(self) -> list[int]:
        """The numbers of the workers, by subtask."""
        assert [worker.subtask for worker in self.workers] == [*range(len(self.workers))]
        return [worker.number for worker in self.workers]

    @property
    def told(self) -> list[Any]:
        """What was told until now, and not heard."""
        found = []
        while True:
            try:
                found.append(self.events.get_nowait())
            except queue.Empty:
                return found


@pytest.fixture
def pool() -> Iterator[PlayedPool]:
    made = PlayedPool()
    yield made
    made.close()
    for place in made.places:
        for connections in place.dialed:
            connections.close()


def is_over(connections: TcpConnections) -> bool:
    """Is the channel closed from the other end?"""
    try:
        return next(connections.receive(), None) is None
    except OSError:
        return True


def receive_start(theirs: TcpConnections) -> StartSession:
    message = next(theirs.receive())
    assert isinstance(message, StartSession)
    return message


def start(subtask: int, peers: tuple[int, ...]) -> StartSession:
    return StartSession(
        session=4, identity="", term=4, first_epoch=1, subtask=subtask, parallelism=3, peers=peers, positions={},
        states=(), in_flight=(), ends=None, waiting_sources=frozenset({f"of {subtask}"}), excluded_sources=frozenset(),
    )  # fmt: skip


def test_each_worker_has_a_number_of_its_own_and_is_spoken_to_once_it_has_connected(pool: PlayedPool) -> None:
    assert [worker.is_connected for worker in pool.workers] == [False] * 3
    with pytest.raises(WorkerDied, match="cannot be reached: it has not connected") as failed:
        pool.workers[1].send(EndSession(session=4))
    assert failed.value.workers == {pool.places[1].ticket.number}

    connections = pool.connect()
    assert [worker.subtask for worker in pool.workers] == [0, 1, 2]
    assert len({worker.number for worker in pool.workers}) == 3
    assert [(worker.is_connected, worker.alive, worker.pid > 0) for worker in pool.workers] == [(True, True, True)] * 3
    assert [worker.io_bytes for worker in pool.workers] == [7, 8, 9]
    for subtask, (worker, theirs) in enumerate(zip(pool.workers, connections, strict=True)):
        worker.send(EndSession(session=subtask))
        assert next(theirs.receive()) == EndSession(session=subtask)
        for session in (5, 6):
            theirs.send(SessionReady(session=session))
        assert [pool.hear() for _ in range(2)] == [
            WorkerMessage(SessionReady(session=session), worker.number) for session in (5, 6)
        ]


def test_a_session_connects_each_worker_with_all_others(pool: PlayedPool) -> None:
    connections = pool.connect()
    secrets = set()
    for _ in range(2):
        pool.start_sessions(start)
        begun = [receive_start(theirs) for theirs in connections]
        with ThreadPoolExecutor(3) as threads:
            meet = lambda theirs, begins: theirs.connect_peers(begins, lambda: False)  # noqa: E731
            sockets = list(threads.map(meet, connections, begun))
        assert [each.waiting_sources for each in begun] == [frozenset({f"of {subtask}"}) for subtask in range(3)]
        assert [set(each) for each in sockets] == [{1, 2}, {0, 2}, {0, 1}]
        secrets |= {each.secret for each in begun}
        for each in sockets:
            for sock in each.values():
                sock.close()

    assert len(secrets) == 2, "one for each session"


def test_a_worker_sends_its_stacks_or_is_said_not_to_respond(pool: PlayedPool, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = pool.connect()
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(pool.workers[0].stacks)
        assert next(theirs[0].receive()) == ReportStacks(session=0)
        theirs[0].send(StacksReported(session=0, stacks="in step, line 3"))
        assert asked.result(PATIENCE) == "in step, line 3"
    assert pool.told == []

    monkeypatch.setattr(remote_workers, "_STACKS", 0.01)
    assert f"worker {pool.workers[1].pid} did not respond" in pool.workers[1].stacks()
    pool.workers[2].kill()
    assert "did not respond" in pool.workers[2].stacks()


# ---------------------------------------------------------------- workers that are replaced


def test_a_machine_is_preferred_for_its_state_unless_it_may_be_the_cause_or_is_shut_down(pool: PlayedPool) -> None:
    ready = SessionReady(session=4)
    done = AcknowledgeCheckpoint(
        session=4, epoch=EpochId(Epoch(1), Term(4)), positions={}, states=(), sealed=(), in_flight=(),
        tally=RecordCounts(), watermarks={}, blocked_ms=0.0, aligning_ms=0.0, timers={}, has_overdue_request=False,
        spans=(),
    )  # fmt: skip
    first = pool.places[0]
    assert first.replaced is None

    second = pool.lose(0, ready)
    assert second.replaced is first, "its machine has the state"
    third = pool.lose(0, ready, done)
    assert third.replaced is second, "its machine has run a worker"
    fourth = pool.lose(0, ready)
    assert fourth.replaced is None, "the machine of the last two may be the cause"
    fifth = pool.lose(0, ready)
    assert fifth.replaced is fourth
    sixth = pool.lose(0)
    assert sixth.replaced is None, "it has not opened its state"
    pool.on_leaving(sixth.ticket.number)
    assert pool.lose(0, ready, done).replaced is None, "its machine is to be shut down"


# ---------------------------------------------------------------- workers that are left out


def test_new_workers_get_the_subtasks_whose_state_their_machines_have_and_others_keep_theirs(pool: PlayedPool) -> None:
    one, two, three = pool.layout
    states = state_of(0, 700), state_of(1, 800), state_of(2, 900)
    begin = EpochId(Epoch(1), Term(4))
    pool.expect_restore(RestorePoint(JobIdentity("0123456789ab"), Term(4), begin, Epoch(2), states, {}, ()))
    for place, sizes in zip(pool.places, ((800,), (900, 1), (700,)), strict=True):
        place.local_state = sizes
    connections = pool.connect()
    pool.assign_subtasks()
    assert pool.layout == [three, one, two]
    pool.start_sessions(start)
    for theirs, subtask in zip(connections, (1, 2, 0), strict=True):
        assert receive_start(theirs).subtask == subtask
        theirs.send(SessionReady(session=4))
        assert isinstance(pool.hear(), WorkerMessage)

    pool.workers[0].kill()
    pool.workers[2].kill()
    pool.start_workers()
    four, five = (place.ticket.number for place in pool.places[3:])
    for place, sizes in zip(pool.places[3:], ((800, 900), (700, 800)), strict=True):
        place.local_state = sizes
        place.dials()
    eventually(lambda: all(worker.is_connected for worker in pool.workers), "all have connected")
    pool.assign_subtasks()
    assert pool.layout == [five, one, four]


def state_of(subtask: int, size: int) -> StateHandle:
    groups = key_group_range(subtask, 3)
    return StateHandle("o", "rocksdb", (groups.start, groups.stop - 1), (FileRef("000009.sst", "", size),), ())


def test_an_attempt_runs_with_the_connected_workers_and_the_next_one_with_all(pool: PlayedPool) -> None:
    one, two, three = pool.layout
    connections = pool.connect(0, 2)
    pool.leave_out_missing()

    assert pool.layout == [one, three]
    assert pool.find_change() == ""
    pool.start_sessions(start)
    assert [(begun.subtask, begun.peers) for begun in map(receive_start, connections)] == [
        (0, (1,)),
        (1, (0,)),
    ]
    pool.connect(1)
    assert "more workers have connected" in pool.find_change()
    pool.start_workers()
    assert pool.layout == [one, three, two]
    assert len(pool.places) == 3


def test_a_worker_that_was_left_out_and_has_ended_is_replaced(pool: PlayedPool) -> None:
    one, two, three = pool.layout
    pool.connect(0, 1)
    pool.leave_out_missing()
    (theirs,) = pool.connect(2)
    theirs.close()
    assert pool.hear() == WorkerExited(three, "closed its connection")

    assert pool.find_change() == ""
    pool.start_workers()
    assert pool.layout == [one, two, pool.places[3].ticket.number]


def test_a_worker_that_ends_while_it_is_left_out_is_launched_again_after_a_pause(
    pool: PlayedPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its cores may have come and gone while the others run, for months without another attempt."""
    one, two, three = pool.layout
    pool.connect(0, 1)
    pool.leave_out_missing()
    pool.places[2].lives = False
    pool.on_task_ended(three)
    assert isinstance(pool.hear(), WorkerExited)

    pool.replace_left_out()
    assert len(pool.places) == 3
    monkeypatch.setattr(remote_workers, "_PAUSE", 0.0)
    pool.replace_left_out()
    pool.replace_left_out()
    (again,) = pool.places[3:]
    assert (again.subtask, again.replaced) == (2, None)
    pool.connect(3)
    assert "more workers have connected" in pool.find_change()
    pool.start_workers()
    assert pool.layout == [one, two, again.ticket.number]


def test_workers_that_were_left_out_end_with_the_pool(pool: PlayedPool) -> None:
    pool.connect(0)
    pool.leave_out_missing()
    pool.kill_all()

    assert [place.lives for place in pool.places] == [False] * 3


def test_a_worker_whose_place_is_to_be_shut_down_is_replaced_by_the_next_attempt(pool: PlayedPool) -> None:
    one, two, three = pool.layout
    connections = pool.connect()
    pool.on_leaving(two)

    assert "the place of worker 1 is to be shut down" in pool.find_change()
    assert pool.workers[1].alive, "until the checkpoint"
    pool.start_workers()
    assert pool.hear() == WorkerExited(two, "was given up")
    assert pool.places[1].kills
    assert is_over(connections[1])
    assert pool.layout == [one, pool.places[3].ticket.number, three]
    assert pool.find_change() == ""


# ---------------------------------------------------------------- ends


def ends(pool: PlayedPool, place: Place, how: str) -> None:
    """Exactly one event tells it, and the place is told to end, too."""
    assert pool.hear() == WorkerExited(place.ticket.number, how)
    assert not pool.workers[place.subtask].alive
    assert place.kills


def test_a_task_that_has_ended_is_told_once(pool: PlayedPool) -> None:
    theirs = pool.connect()
    pool.places[1].end = "was killed by signal 9"
    pool.on_task_ended(pool.places[1].ticket.number)
    ends(pool, pool.places[1], "was killed by signal 9")
    assert is_over(theirs[1])
    pool.on_task_ended(pool.places[2].ticket.number)
    ends(pool, pool.places[2], "has ended")

    pool.on_task_ended(pool.places[1].ticket.number)
    pool.on_task_ended(99)
    pool.workers[1].kill()
    assert pool.told == []
    with pytest.raises(WorkerDied, match="was killed by signal 9"):
        pool.workers[1].send(EndSession(session=4))
    assert pool.workers[0].alive


def test_a_task_that_ends_before_it_has_connected_is_told(pool: PlayedPool) -> None:
    pool.on_task_ended(pool.places[0].ticket.number)
    ends(pool, pool.places[0], "has ended")


@pytest.mark.parametrize("end", ["", "exited with code 3"])
def test_a_worker_that_closes_its_connection_has_ended(pool: PlayedPool, end: str) -> None:
    theirs = pool.connect()
    pool.places[0].end = end
    theirs[0].close()

    ends(pool, pool.places[0], end or "closed its connection")


def test_a_worker_that_says_rubbish_has_ended(pool: PlayedPool) -> None:
    theirs = pool.connect()
    theirs[0]._control._sock.send(b"\xff" * 64)

    event = pool.hear()
    assert isinstance(event, WorkerExited) and event.how.startswith("lost its connection: ")


def test_a_worker_that_is_given_up_is_not_heard_any_more(pool: PlayedPool) -> None:
    theirs = pool.connect()
    pool.workers[1].kill()

    ends(pool, pool.places[1], "was given up")
    assert is_over(theirs[1])
    pool.places[1].lives = True  # it cannot be killed from here
    assert not pool.workers[1].alive
    with pytest.raises(WorkerDied, match="the control channel is closed"):
        pool.workers[1].send(EndSession(session=4))


def test_what_has_ended_is_replaced_and_what_lives_stays(pool: PlayedPool) -> None:
    """Whoever was replaced is not let in any more, and a number is let in once."""
    first = pool.workers
    pool.workers[1].kill()
    pool.places[2].lives = False
    pool.start_workers()

    assert [place.subtask for place in pool.places] == [0, 1, 2, 1, 2]
    assert pool.workers[0] is first[0]
    numbers = [place.ticket.number for place in pool.places]
    assert len({*numbers}) == 5
    assert [worker.number for worker in pool.workers] == [numbers[0], numbers[3], numbers[4]]
    assert pool.hear() == WorkerExited(numbers[1], "was given up")
    replaced, mine = pool.places[1].dials(), pool.places[3].dials()
    assert pool.hear() == WorkerConnected(numbers[3])
    again = pool.places[3].dials()
    assert is_over(replaced) and is_over(again)
    mine.send(SessionReady(session=4))
    assert pool.hear() == WorkerMessage(SessionReady(session=4), numbers[3])


def test_a_worker_that_was_given_up_before_it_connected_is_not_let_in(pool: PlayedPool) -> None:
    pool.workers[0].kill()
    ends(pool, pool.places[0], "was given up")

    assert is_over(pool.places[0].dials())
    assert not pool.workers[0].is_connected
    assert pool.told == []


def test_who_speaks_another_language_is_not_let_in(pool: PlayedPool) -> None:
    ticket = pool.places[0].ticket
    at = TcpAddress(ticket.host, ticket.port)
    own = ticket.credentials
    channel = TcpChannel(dial_in(at, b"\xffhello", own))

    assert list(channel.receive_as_worker()) == []
    channel.release()
    hello = msgspec.msgpack.encode(WorkerHello(ticket.number, 1, "127.0.0.1", 1))
    with pytest.raises(ConnectionError):
        dial_in(at, hello, msgspec.structs.replace(own, secret=b"another secret"))
    assert pool.told == []


def test_a_pool_that_is_closed_ends_its_workers_and_listens_no_more(pool: PlayedPool) -> None:
    theirs = pool.connect()
    pool.close()

    assert [place.kills > 0 for place in pool.places] == [True] * 3
    assert all(map(is_over, theirs))
    eventually(lambda: refuses(pool.places[0].dials), "nobody is let in")


def test_no_thread_outlives_its_pool(request: pytest.FixtureRequest) -> None:
    """One that calls OpenSSL while the process ends would crash it."""
    before = {*threading.enumerate()}
    pool: PlayedPool = request.getfixturevalue("pool")
    pool.connect()
    at = pool.places[0].ticket
    with socket.create_connection((at.host, at.port)):
        eventually(lambda: any(each.name == "handshake" for each in threading.enumerate()), "a stranger is greeted")

        pool.close()

        of_workers = ["listener"] * len(pool.places)  # those of the workers, which the test plays
        assert [each.name for each in threading.enumerate() if each not in before] == of_workers


def refuses(dials: Callable[[], TcpConnections]) -> bool:
    try:
        dials()
    except OSError:
        return True
    return False
