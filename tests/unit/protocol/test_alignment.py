"""The gate, event by event: Algorithm 1, Algorithm 2, unaligned, at least once, and everything that comes late."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.core.errors import Bug
from kafka_eos.protocol.barrier_alignment import (
    Channel,
    CheckpointMode,
    CompleteSnapshot,
    GateAction,
    InputGate,
    TakeSnapshot,
)

A, B, C, LOOP = "a", "b", "c", "loop"
THREE = frozenset[Channel]({A, B, C})
CYCLIC = frozenset[Channel]({A, B, LOOP})


def gate(
    mode: CheckpointMode = CheckpointMode.ALIGNED,
    channels: frozenset[Channel] = THREE,
    timeout: float = 0.0,
    loop: bool = False,
) -> InputGate:
    feedback = frozenset[Channel]({LOOP} if loop else ())
    return InputGate(channels=channels, mode=mode, aligned_timeout=timeout, feedback=feedback)


def play(start: InputGate, *events: tuple[str, int] | tuple[str, int, float]) -> tuple[InputGate, list[GateAction]]:
    """Barriers in order: (channel, epoch) or (channel, epoch, now)."""
    actions: list[GateAction] = []
    for channel, epoch, *now in events:
        start, new = start.on_barrier(channel, epoch, now[0] if now else 0.0)
        actions += new
    return start, actions


class TestAligned:
    def test_channels_wait_from_their_barrier_to_the_last_one(self) -> None:
        after_one, nothing = play(gate(), (A, 1))
        after_two, still_nothing = play(after_one, (C, 1))
        after_all, actions = play(after_two, (B, 1))

        assert (nothing, still_nothing) == ([], [])
        assert [g.blocked_channels for g in (after_one, after_two, after_all)] == [{A}, {A, C}, frozenset()]
        assert actions == [TakeSnapshot(1, unaligned=False), CompleteSnapshot(1)]

    def test_nothing_is_ever_logged(self) -> None:
        assert play(gate(), (A, 1), (B, 1))[0].logged_channels == frozenset()

    def test_a_single_channel_never_waits(self) -> None:
        alone, actions = play(gate(channels=frozenset({A})), (A, 1), (A, 2))

        assert actions == [TakeSnapshot(1, False), CompleteSnapshot(1), TakeSnapshot(2, False), CompleteSnapshot(2)]
        assert alone.pending is None

    def test_time_changes_nothing(self) -> None:
        waiting, _ = play(gate(), (A, 1))

        assert waiting.on_tick(math.inf) == (waiting, ())

    @pytest.mark.parametrize("mode", CheckpointMode)
    @pytest.mark.parametrize("channel", [A, B])
    def test_a_newer_barrier_while_an_epoch_is_pending_is_a_bug(self, mode: CheckpointMode, channel: str) -> None:
        """It was triggered too early, or somebody has read on behind a barrier."""
        waiting, _ = play(gate(mode), (A, 1))

        with pytest.raises(Bug, match="barrier 2 arrived on .* while epoch 1 is pending"):
            waiting.on_barrier(channel, 2, 0.0)


class TestAlignedEpochsOfOtherJobs:
    """An epoch that must leave nothing under way is aligned in every mode, and says so in each of its barriers."""

    @pytest.mark.parametrize("mode", [CheckpointMode.UNALIGNED, CheckpointMode.AT_LEAST_ONCE])
    def test_it_waits_for_the_last_barrier(self, mode: CheckpointMode) -> None:
        first, nothing = gate(mode).on_barrier(A, 1, 0.0, aligned=True)
        second, still_nothing = first.on_barrier(C, 1, 0.0, aligned=True)
        last, actions = second.on_barrier(B, 1, 0.0, aligned=True)

        assert (nothing, still_nothing) == ((), ())
        assert [g.blocked_channels for g in (first, second, last)] == [{A}, {A, C}, frozenset()]
        assert actions == (TakeSnapshot(1, unaligned=False, aligned=True), CompleteSnapshot(1))
        assert not first.is_due_on_receipt(1, aligned=True)

    def test_time_does_not_switch_it_over(self) -> None:
        waiting, _ = gate(CheckpointMode.UNALIGNED, timeout=1.0).on_barrier(A, 1, 0.0, aligned=True)

        assert waiting.on_tick(1e9) == (waiting, ())

    def test_a_late_barrier_of_an_epoch_that_was_given_up_changes_nothing(self) -> None:
        begun, _ = play(gate(CheckpointMode.UNALIGNED), (A, 1))
        waiting, _ = begun.on_abort(1)[0].on_barrier(A, 2, 0.0, aligned=True)

        assert waiting.on_barrier(B, 1, 0.0) == (waiting, ())
        assert waiting.blocked_channels == {A}


class TestUnaligned:
    def test_the_first_barrier_takes_the_snapshot_and_the_others_end_the_logs(self) -> None:
        first, captured = play(gate(CheckpointMode.UNALIGNED), (B, 1))
        second, nothing = play(first, (A, 1))
        last, complete = play(second, (C, 1))

        assert captured == [TakeSnapshot(1, unaligned=True)]
        assert nothing == []
        assert complete == [CompleteSnapshot(1)]
        assert [g.logged_channels for g in (first, second, last)] == [{A, C}, {C}, frozenset()]
        assert [g.blocked_channels for g in (first, second, last)] == [frozenset()] * 3

    def test_alignment_that_is_quick_enough_stores_nothing(self) -> None:
        done, actions = play(gate(CheckpointMode.UNALIGNED, timeout=1.0), (A, 1, 10.0), (B, 1, 10.5), (C, 1, 10.9))

        assert actions == [TakeSnapshot(1, unaligned=False), CompleteSnapshot(1)]
        assert done.pending is None

    def test_alignment_that_drags_is_switched_over(self) -> None:
        waiting, _ = play(gate(CheckpointMode.UNALIGNED, timeout=1.0), (A, 1, 10.0))
        early, nothing = waiting.on_tick(10.9)
        switched, actions = early.on_tick(11.0)

        assert waiting.blocked_channels == {A}
        assert (early, nothing) == (waiting, ())
        assert actions == (TakeSnapshot(1, unaligned=True),)
        assert (switched.blocked_channels, switched.logged_channels) == (frozenset(), {B, C})

    def test_a_barrier_after_the_timeout_switches_over_without_a_tick(self) -> None:
        assert play(gate(CheckpointMode.UNALIGNED, timeout=1.0), (A, 1, 10.0), (B, 1, 11.0))[1] == [
            TakeSnapshot(1, unaligned=True)
        ]

    def test_an_infinite_timeout_never_switches(self) -> None:
        waiting, _ = play(gate(CheckpointMode.UNALIGNED, timeout=math.inf), (A, 1))

        assert waiting.on_tick(1e9) == (waiting, ())


class TestAtLeastOnce:
    def test_nobody_waits_and_the_last_barrier_takes_the_snapshot(self) -> None:
        two, nothing = play(gate(CheckpointMode.AT_LEAST_ONCE), (A, 1), (B, 1))

        assert (nothing, two.blocked_channels, two.logged_channels) == ([], frozenset(), frozenset())
        assert play(two, (C, 1))[1] == [TakeSnapshot(1, False), CompleteSnapshot(1)]


class TestCycles:
    def test_back_edges_are_not_waited_for_but_logged_until_their_barrier_returns(self) -> None:
        captured, actions = play(gate(channels=CYCLIC, loop=True), (A, 1), (B, 1))
        returned, complete = play(captured, (LOOP, 1))

        assert actions == [TakeSnapshot(1, unaligned=False)]
        assert (captured.blocked_channels, captured.logged_channels) == (frozenset(), {LOOP})
        assert complete == [CompleteSnapshot(1)]
        assert returned.logged_channels == frozenset()

    def test_a_back_edge_whose_barrier_is_early_waits_like_any_other(self) -> None:
        """Another subtask of the loop was faster: what follows on its channel is of the next epoch."""
        early, _ = play(gate(channels=CYCLIC, loop=True), (LOOP, 1))

        assert early.blocked_channels == {LOOP}
        assert play(early, (A, 1), (B, 1))[1] == [TakeSnapshot(1, False), CompleteSnapshot(1)]

    def test_unaligned_treats_back_edges_like_all_others(self) -> None:
        captured, actions = play(gate(CheckpointMode.UNALIGNED, channels=CYCLIC, loop=True), (A, 1))

        assert actions == [TakeSnapshot(1, True)]
        assert captured.logged_channels == {B, LOOP}

    def test_at_least_once_still_logs_the_loop(self) -> None:
        captured, _ = play(gate(CheckpointMode.AT_LEAST_ONCE, channels=CYCLIC, loop=True), (A, 1), (B, 1))

        assert captured.logged_channels == {LOOP}

    def test_a_back_edge_must_be_an_input(self) -> None:
        with pytest.raises(Bug, match="not inputs"):
            InputGate(channels=frozenset({A}), feedback=frozenset({B}))


class TestLateAndRepeated:
    @pytest.mark.parametrize("mode", CheckpointMode)
    def test_a_repeated_barrier_changes_nothing(self, mode: CheckpointMode) -> None:
        once, _ = play(gate(mode), (A, 1))

        assert once.on_barrier(A, 1, 5.0) == (once, ())

    @pytest.mark.parametrize("mode", CheckpointMode)
    def test_a_barrier_of_a_finished_epoch_changes_nothing(self, mode: CheckpointMode) -> None:
        done, _ = play(gate(mode), (A, 3), (B, 3), (C, 3))

        assert done.on_barrier(A, 3, 5.0) == (done, ())
        assert done.on_barrier(B, 2, 5.0) == (done, ())

    @pytest.mark.parametrize("mode", CheckpointMode)
    def test_abort_frees_everything_and_late_barriers_of_it_change_nothing(self, mode: CheckpointMode) -> None:
        waiting, _ = play(gate(mode), (A, 1))
        aborted, nothing = waiting.on_abort(1)

        assert nothing == ()
        assert (aborted.blocked_channels, aborted.logged_channels, aborted.pending) == (frozenset(), frozenset(), None)
        assert play(aborted, (B, 1), (C, 1)) == (aborted, [])

    def test_an_epoch_may_be_aborted_before_its_first_barrier_comes(self) -> None:
        aborted, _ = gate().on_abort(2)

        assert aborted.on_barrier(A, 2, 0.0) == (aborted, ())
        assert aborted.on_barrier(A, 1, 0.0) == (aborted, ())
        assert play(aborted, (A, 3), (B, 3), (C, 3))[1] == [TakeSnapshot(3, False), CompleteSnapshot(3)]

    def test_aborting_an_epoch_that_is_over_leaves_the_pending_one(self) -> None:
        waiting, _ = play(gate(), (A, 2))

        assert waiting.on_abort(1) == (waiting, ())
        assert play(waiting.on_abort(1)[0], (B, 2), (C, 2))[1] == [TakeSnapshot(2, False), CompleteSnapshot(2)]

    def test_a_stranger_is_a_bug(self) -> None:
        with pytest.raises(Bug, match="not an input"):
            gate().on_barrier("d", 1, 0.0)


BARRIERS = st.lists(st.tuples(st.sampled_from([A, B, LOOP]), st.integers(1, 4), st.integers(0, 3)), max_size=40)


@given(BARRIERS, st.sampled_from(CheckpointMode), st.sampled_from([0.0, 2.0, math.inf]), st.booleans())
def test_whatever_comes_an_epoch_is_captured_once_then_completed_once(
    barriers: list[tuple[str, int, int]], mode: CheckpointMode, timeout: float, loop: bool
) -> None:
    """Any order of barriers and aborts in which no epoch begins while another is pending."""
    busy = gate(mode, channels=CYCLIC, timeout=timeout, loop=loop)
    actions: list[GateAction] = []
    for now, (channel, epoch, kind) in enumerate(barriers):
        if kind == 0:
            busy, new = busy.on_abort(epoch)
        elif busy.pending is not None and epoch > busy.pending.epoch:
            busy, new = busy.on_tick(float(now))
        else:
            busy, new = busy.on_barrier(channel, epoch, float(now))
        actions += new

    captured = [a.epoch for a in actions if isinstance(a, TakeSnapshot)]
    completed = [a.epoch for a in actions if isinstance(a, CompleteSnapshot)]
    assert captured == sorted(set(captured))
    assert completed == sorted(set(completed))
    assert set(completed) <= set(captured)
    if mode is CheckpointMode.AT_LEAST_ONCE:
        assert busy.blocked_channels == frozenset()


class TestWhatTheEngineAsks:
    @pytest.mark.parametrize(
        ("mode", "timeout", "aligned", "at_once"),
        [
            (CheckpointMode.UNALIGNED, 0.0, False, True),
            (CheckpointMode.UNALIGNED, 0.0, True, False),
            (CheckpointMode.UNALIGNED, 1.0, False, False),
            (CheckpointMode.ALIGNED, 0.0, False, False),
            (CheckpointMode.AT_LEAST_ONCE, 0.0, False, False),
        ],
    )
    def test_a_barrier_is_reported_when_it_is_received_if_it_overtakes_at_once(
        self, mode: CheckpointMode, timeout: float, aligned: bool, at_once: bool
    ) -> None:
        assert gate(mode, timeout=timeout).is_due_on_receipt(1, aligned) is at_once
        assert gate(mode, timeout=timeout).is_due_on_receipt(1) is (
            at_once or (mode is CheckpointMode.UNALIGNED and timeout == 0)
        )

    def test_a_barrier_is_reported_when_it_is_received_if_the_snapshot_is_taken(self) -> None:
        """Its rows before it are logged on receipt, too."""
        waiting, _ = play(gate(CheckpointMode.UNALIGNED, timeout=1.0), (A, 1, 0.0))
        captured, _ = waiting.on_tick(1.0)

        assert [each.is_due_on_receipt(1) for each in (waiting, captured)] == [False, True]
        assert not captured.is_due_on_receipt(2)

    def test_rows_are_logged_from_the_snapshot_on(self) -> None:
        waiting, _ = play(gate(CheckpointMode.UNALIGNED, timeout=1.0), (A, 1, 0.0))
        captured, _ = waiting.on_tick(1.0)

        assert [each.epochs_logging(B) for each in (waiting, captured)] == [None, 1]
        assert captured.epochs_logging(A) is None

    def test_the_time_counts_from_the_first_barrier(self) -> None:
        waiting, _ = play(gate(CheckpointMode.UNALIGNED, timeout=10.0), (A, 1, 0.0), (C, 1, 5.0))

        assert waiting.on_tick(9.9) == (waiting, ())
        assert waiting.on_tick(10.0)[1] == (TakeSnapshot(1, unaligned=True),)
