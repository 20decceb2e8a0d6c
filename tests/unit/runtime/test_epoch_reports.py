"""What an attempt restores: the state files that each of its subtasks opens."""

from __future__ import annotations

from kafka_eos.abc.state import StateHandle
from kafka_eos.abc.storage import FileRef
from kafka_eos.core.ids import Epoch, EpochId, JobIdentity, Term
from kafka_eos.runtime.epoch_reports import RestorePoint
from kafka_eos.runtime.state.key_groups import MAX_KEY_GROUPS


def handle(groups: tuple[int, int], *sizes: int) -> StateHandle:
    files = [*(FileRef(f"{size:06}.sst", "", size) for size in sizes), FileRef("MANIFEST-000004", "", 1)]
    return StateHandle("totals", "rocksdb", groups, tuple(files), ())


def test_a_subtask_opens_the_immutable_files_of_all_state_that_has_some_of_its_key_groups() -> None:
    half = MAX_KEY_GROUPS // 2
    states = handle((0, half - 1), 10, 11), handle((half, MAX_KEY_GROUPS - 1), 20)
    base = EpochId(Epoch(1), Term(4))
    point = RestorePoint(JobIdentity("0123456789ab"), Term(4), base, Epoch(2), states, {}, ())

    assert [point.list_state_files(subtask, 2) for subtask in range(2)] == [[10, 11], [20]]
    assert [point.list_state_files(subtask, 3) for subtask in range(3)] == [[10, 11], [10, 11, 20], [20]]
    assert point.list_state_files(0, 1) == [10, 11, 20]
