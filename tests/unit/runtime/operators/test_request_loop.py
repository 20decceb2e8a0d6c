"""Requests: tries, timeouts, pauses and the breaker, by a clock that is not there."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos import Retryable, breaker, retries
from kafka_eos.core.errors import EnvironmentFailed, PlanError
from kafka_eos.plan.retries import Circuit, Retries
from kafka_eos.runtime.operators.async_io.loop_watchdog import LoopWatchdog, RequestsWarning
from kafka_eos.runtime.operators.async_io.pending_rows import RequestResult
from kafka_eos.runtime.operators.async_io.request_loop import Requester, RequestPolicy, RetryingCall
from kafka_eos.runtime.operators.async_io.thread_pool import DaemonThreadPool
from tests.unit.runtime.operators.virtual_time import run

ON = (OSError, Retryable)


class Service:
    """Answers after ``seconds``, or fails as the script says, one entry a request; ``asked`` are their times."""

    def __init__(self, *script: Exception | float) -> None:
        self._script, self.asked = list(script), list[float]()
        self.now_at = self.most_at_a_time = 0

    async def __call__(self, value: int) -> int:
        self.asked.append(asyncio.get_running_loop().time())
        self.now_at += 1
        self.most_at_a_time = max(self.most_at_a_time, self.now_at)
        try:
            what = self._script.pop(0) if self._script else 0.0
            if isinstance(what, Exception):
                raise what
            await asyncio.sleep(what)
            return value * 2
        finally:
            self.now_at -= 1


def answered(
    service: Service, policy: RequestPolicy, *values: int, chance: float = 1.0
) -> tuple[list[RequestResult], float]:
    async def work() -> list[RequestResult]:
        answering = RetryingCall(service, policy, chance=lambda: chance)
        return list(await asyncio.gather(*map(answering.answer, values)))

    return run(work())


def test_an_answer_is_an_answer() -> None:
    found, took = answered(Service(3.0), RequestPolicy(5, None, None, ON), 21)

    assert (found, took) == ([RequestResult(42)], pytest.approx(3))


def test_a_try_that_takes_too_long_has_failed() -> None:
    (found,), took = answered(Service(6.0), RequestPolicy(5, None, None, ON), 21)

    assert isinstance(found.error, TimeoutError)
    assert str(found.error) == "the function did not respond within timeout=5 seconds"
    assert took == pytest.approx(5)


def test_what_fails_is_tried_again_after_pauses_that_grow() -> None:
    service = Service(ConnectionError("1"), 9.0, Retryable("3"), ConnectionError("4"))

    (found,), took = answered(service, RequestPolicy(5, retries(4, first=1, most=3), None, ON), 21)

    assert found == RequestResult(42)
    assert service.asked == pytest.approx([0, 1, 1 + 5 + 2, 8 + 3, 11 + 3])
    assert took == pytest.approx(14)


def test_after_the_last_try_the_last_error_is_the_answer() -> None:
    errors = [ConnectionError(str(n)) for n in range(3)]

    (found,), _ = answered(Service(*errors), RequestPolicy(5, retries(2), None, ON), 21)

    assert found.error is errors[2]


def test_what_another_try_would_not_change_is_not_tried_again() -> None:
    service = Service(ValueError("no such thing"))

    (found,), _ = answered(service, RequestPolicy(5, retries(3), breaker(1, pause=60), ON), 21)

    assert isinstance(found.error, ValueError)
    assert len(service.asked) == 1


@given(st.integers(1, 2000), st.floats(0, 1), st.floats(0.001, 10), st.floats(1, 1000))
def test_pauses_are_spread_and_have_a_bound(failures: int, chance: float, first: float, times: float) -> None:
    rule = Retries(9, first, first * times)
    whole = rule.pause(failures, 1)

    assert whole <= rule.most
    assert whole / 2 <= rule.pause(failures, chance) <= whole
    assert rule.pause(failures + 1, 1) >= whole


def test_an_open_breaker_lets_nobody_through_and_then_one() -> None:
    service = Service(ConnectionError(), ConnectionError(), 2.0)
    policy = RequestPolicy(5, retries(3, first=0.5, most=0.5), breaker(2, pause=10), ON)

    found, took = answered(service, policy, 1, 2, 3)

    # The third is not asked for, though nobody has asked for it yet. One tries after the pause, then all do.
    assert service.asked == pytest.approx([0, 0, 10, 12, 12])
    assert found == [RequestResult(2), RequestResult(4), RequestResult(6)]
    assert took == pytest.approx(12)


def test_a_breaker_whose_try_fails_stays_open() -> None:
    service = Service(ConnectionError(), ConnectionError(), ConnectionError())
    policy = RequestPolicy(5, retries(9, first=0.5, most=0.5), breaker(1, pause=10), ON)

    (found,), _ = answered(service, policy, 1)

    assert service.asked == pytest.approx([0, 10, 20, 30])
    assert found == RequestResult(2)


@given(st.lists(st.tuples(st.floats(0, 20), st.booleans()), max_size=40), st.integers(1, 3))
def test_while_a_circuit_is_open_there_is_one_try_a_pause(events: list[tuple[float, bool]], failures: int) -> None:
    """``events``: seconds that pass, and whether a request that may be made then is answered."""
    circuit, now, row = Circuit(breaker(failures, pause=7)), 0.0, 0
    tries: list[float] = []
    for seconds, succeeds in events:
        now += seconds
        circuit, wait = circuit.admit(now)
        if wait:
            assert row >= failures and now < tries[-1] + 7
            continue
        assert row < failures or now >= tries[-1] + 7
        tries.append(now)
        circuit, row = (circuit.succeeded(), 0) if succeeds else (circuit.failed(now), row + 1)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: retries(0), "times must be a whole number"),
        (lambda: retries(1, first=0), "0 < first <= most"),
        (lambda: retries(1, first=2, most=1), "0 < first <= most"),
        (lambda: breaker(0, pause=1), "failures must be a whole number of at least 1"),
        (lambda: breaker(1, pause=0), "pause must be a positive number"),
    ],
)
def test_rules_that_make_no_sense_are_refused(make: Callable[[], object], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        make()


# ---------------------------------------------------------------- beside a thread


def ask(fn: Callable[[int], Any], values: range = range(1), timeout: float = 30) -> dict[int, RequestResult]:
    asking = Requester(fn, RequestPolicy(timeout, None, None, ON), 4, "test")
    for value in values:
        asking.submit(value, value)
    found = dict(asking.wait() for _ in values)
    asking.close()
    return found


def doubled(value: int) -> int:
    return value * 2


async def doubled_later(value: int) -> int:
    return value * 2


@pytest.mark.parametrize("fn", [doubled, doubled_later, lambda value: doubled_later(value)])
def test_functions_of_each_kind_are_asked(fn: Callable[[int], Any]) -> None:
    assert ask(fn, range(50)) == {value: RequestResult(value * 2) for value in range(50)}


def raising(error: BaseException) -> tuple[Callable[[int], Any], Callable[[int], Coroutine[Any, Any, Any]]]:
    def plain(value: int) -> Any:
        raise error

    async def later(value: int) -> Any:
        raise error

    return plain, later


@pytest.mark.parametrize(
    "error", [ValueError("x"), StopIteration(3), SystemExit(2), KeyboardInterrupt(), asyncio.CancelledError()]
)
@pytest.mark.parametrize("kind", [0, 1], ids=["plain", "later"])
def test_whatever_a_function_raises_is_an_answer(error: BaseException, kind: int) -> None:
    """A row without one would wait for ever."""
    found = ask(raising(error)[kind])[0]

    assert isinstance(found.error, Exception)
    assert found.error is error or found.error.__cause__ is error or isinstance(error, StopIteration)


def test_a_function_that_hangs_in_its_thread_is_given_up_and_the_next_one_is_called() -> None:
    never, called = threading.Event(), list[int]()

    def hang(value: int) -> int:
        called.append(value)
        if value == 0:
            never.wait()
        return value

    found = ask(hang, range(3), timeout=0.2)
    never.set()

    assert isinstance(found[0].error, TimeoutError)
    assert [found[1], found[2]] == [RequestResult(1), RequestResult(2)]


def test_a_timeout_names_the_function_and_no_cause() -> None:
    async def forecast(value: int) -> int:
        await asyncio.sleep(60)
        return value

    error = ask(forecast, timeout=0.01)[0].error

    assert error is not None and error.__suppress_context__ and error.__cause__ is None
    assert str(error).endswith("did not respond within timeout=0.01 seconds")
    assert "forecast (test_request_loop.py, line " in str(error)


# ---------------------------------------------------------------- functions that hold up others


def test_threads_that_hang_are_counted_over_all_sessions_and_a_process_has_so_many_of_them() -> None:
    """Rows that come then wait, until one has returned."""
    never, began = threading.Event(), threading.Semaphore(0)

    def hang(value: int) -> int:
        began.release()
        never.wait()
        return value

    def session(calls: int) -> DaemonThreadPool:
        threads = DaemonThreadPool(2, "hanging", "hang (app.py, line 3)")
        waiting = [threads.submit(hang, number) for number in range(2)]
        assert all(began.acquire(timeout=20) for _ in range(calls))
        assert not any(future.done() for future in waiting)
        threads.close()
        return threads

    session(2)
    session(2)
    with pytest.warns(
        RequestsWarning, match=r"'hanging': 4 threads of earlier attempts are still blocked in hang \(app.py, line 3\)"
    ):
        session(2)
    with pytest.warns(RequestsWarning, match="6 threads"):
        session(2)
    with pytest.warns(RequestsWarning, match="8 threads"):
        full = DaemonThreadPool(2, "hanging")
    waiting = full.submit(hang, 7)
    assert not began.acquire(blocking=False)
    assert not full._threads
    never.set()
    waiting.cancel()


def test_a_pool_starts_as_many_threads_as_it_may_and_no_more() -> None:
    may_end, began = threading.Event(), threading.Semaphore(0)

    def wait(value: int) -> int:
        began.release()
        may_end.wait()
        return value

    threads = DaemonThreadPool(2, "bounded")
    try:
        waiting = [threads.submit(wait, number) for number in range(4)]
        assert [began.acquire(timeout=20) for _ in range(2)] == [True, True]
        assert len(threads._threads) == 2
    finally:
        may_end.set()
    assert [future.result(timeout=20) for future in waiting] == [0, 1, 2, 3]
    threads.close()


def test_a_coroutine_that_blocks_its_loop_is_named_once_each_time() -> None:
    loop, done, here = asyncio.new_event_loop(), threading.Event(), threading.Event()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    beat = LoopWatchdog(loop, thread)

    async def blocks() -> None:
        here.set()
        done.wait()

    asyncio.run_coroutine_threadsafe(blocks(), loop)
    assert here.wait(20)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [beat.check(now) for now in (100, 101, 102, 500, 501)] == [0, 1, 2, 3, 4], "it was stopped for a while"
    with pytest.warns(RequestsWarning, match=r"for 5 seconds, at .*test_request_loop.py:\d+ in blocks"):
        beat.check(502)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert beat.check(503) == 6

    done.set()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(20)
    assert beat.check(504) == 0
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(20)
    assert beat.check(600) == 0
    loop.call_soon_threadsafe(loop.stop)
    thread.join(20)


def test_a_loop_that_is_kept_for_ever_fails_the_attempt_and_the_next_one_has_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafka_eos.runtime.operators.async_io.request_loop._LOST", 2.5)
    done = threading.Event()

    async def blocks(value: int) -> int:
        done.wait()
        return value

    async def answers(value: int) -> int:
        return value

    first = Requester(blocks, RequestPolicy(1, None, None, ON), 1, "ask")
    first.submit(1, 7)
    with pytest.raises(EnvironmentFailed, match=r"operator 'ask': .*event loop for 3 seconds, at .* in blocks"):
        first.wait()
    first.close()
    second = Requester(answers, RequestPolicy(1, None, None, ON), 1, "ask")
    second.submit(1, 7)

    assert second.wait() == (1, RequestResult(7))
    second.close()
    done.set()
