"""How long a call that has no answer yet is left alone before it is asked again."""

from __future__ import annotations

import threading

from kafka_eos._util.retry import Retrier
from kafka_eos.core.errors import PartialProgress, Retryable


class Clock(threading.Event):
    """Notes pauses, and waits for none."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses.append(timeout)
        return False


def _pauses(*raised: Exception) -> list[float]:
    clock, notices = Clock(), list[str]()
    answers = iter([*raised, None])

    def call() -> str:
        if (error := next(answers)) is not None:
            raise error
        return "answered"

    assert Retrier(clock, notices.append).retry("commit", call) == "answered"
    assert len(notices) == len(raised)
    return clock.pauses


def test_pauses_grow_up_to_a_bound() -> None:
    assert _pauses(*[Retryable("away")] * 8) == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_pauses_begin_anew_with_a_call_that_got_further() -> None:
    further, away = PartialProgress("3 of 9"), Retryable("away")

    assert _pauses(away, away, away, further, away, further) == [0.05, 0.1, 0.2, 0.05, 0.1, 0.05]
