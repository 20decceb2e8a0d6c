"""The queue of one channel: which rows are before a barrier, and which the sender has had credit for."""

from __future__ import annotations

from kafka_eos.runtime.exchange.input_queues import Barrier, BatchOrFrame, InputChannel


def test_rows_before_a_barrier() -> None:
    entry = InputChannel(0, 1)
    arrived: list[BatchOrFrame | Barrier] = [b"a", b"b", Barrier(1, 0.5), b"c", Barrier(2, 0.7)]
    for each in arrived:
        entry.put(each)

    assert [list(entry.iterate_before(epoch)) for epoch in (1, 2, 3)] == [
        [b"a", b"b"],
        [b"a", b"b", b"c"],
        [b"a", b"b", b"c"],
    ]
    assert list(entry.markers) == [Barrier(1, 0.5), Barrier(2, 0.7)]
    assert (entry.find_barrier(2), entry.find_barrier(3)) == (Barrier(2, 0.7), None)
    assert [entry.take() for _ in range(3)] == [b"a", b"b", Barrier(1, 0.5)]
    assert (list(entry.markers), entry.find_barrier(1)) == ([Barrier(2, 0.7)], None)


def test_credit_is_given_once_for_what_is_held_or_else_when_it_is_processed() -> None:
    entry = InputChannel(0, 1, spill_limit=5)
    for each in (b"aaa", b"bb", b"c", b"dddd"):
        entry.put(each)

    assert (entry.credit_due, entry.uncredited) == (3, 4)
    assert entry.credit_early() == 5, "two of them"
    assert (entry.credit_early(), entry.credit_due, entry.uncredited) == (0, 0, 2)
    assert [entry.take(), entry.credit_early(), entry.take(), entry.credit_due] == [b"aaa", 5, b"bb", 0]
    for more in (b"ee", Barrier(1, 0.5)):
        entry.put(more)
    taken = [(entry.credit_due, entry.take()) for _ in range(4)]
    assert taken == [(0, b"c"), (0, b"dddd"), (2, b"ee"), (0, Barrier(1, 0.5))]
    assert (entry.uncredited, entry.queued) == (0, 0)
