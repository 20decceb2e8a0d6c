"""Which tests are the nearest to a file: those of its room, and those that are named for it.

    tests/unit/<room>   the fast tests of a room of ``kafka_eos``; ROOMS adds others, FILES those that one file needs
    CALLERS             all other fast tests that call the function of a mutant, if none of its own notices it
    SLOW                jobs, real brokers, Spark, the simulation: asked only about mutants that no fast test notices

Rule: every folder of the library is in ROOMS or in LEFT_OUT, where a file may stand for itself. A test is named as
pytest names it: a folder, a file, or ``file::function`` where the whole file would take minutes. Of those that a file
names, each mutant is given the ones that can reach it, and first those that call its function: see ``watching``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from pathlib import Path

from tests.mutation.signatures import ROOT, files

_CONTRACT, _UNIT = "tests/contract", "tests/unit"
_FAST = (_UNIT, _CONTRACT, "tests/schedules")
_VERBS = "tests/conformance/test_conformance.py"
_SINKS, _PUT_BACK = f"{_CONTRACT}/test_sinks.py", f"{_CONTRACT}/test_restored_backups.py"
_LAKES = (f"{_CONTRACT}/test_lake_*.py", f"{_UNIT}/connectors/_lake/test_lake_commit_status.py", _SINKS)
_OUTBOX = (
    f"{_CONTRACT}/test_outbox.py",
    f"{_CONTRACT}/test_http_sink.py",
    f"{_CONTRACT}/test_idempotent_sink.py",
    _SINKS,
)
_S3 = (f"{_CONTRACT}/test_s3_*.py",)
_FILES = (
    f"{_UNIT}/connectors/files/test_file_*.py",
    f"{_CONTRACT}/test_file_*.py",
    f"{_CONTRACT}/test_hostile_files.py",
    _SINKS,
)

ROOMS: Mapping[str, Sequence[str]] = {
    "kafka_eos/api/aggregates": (),
    "kafka_eos/storage": (
        f"{_CONTRACT}/test_storage.py",
        f"{_UNIT}/coordination/test_origin.py",
        "tests/chaos/test_damaged_objects.py",
        "tests/chaos/test_savepoints.py",
    ),
    "kafka_eos/coordination": (
        f"{_UNIT}/storage/test_live_savepoints.py",
        f"{_UNIT}/storage/test_savepoints.py",
        "tests/chaos/test_incarnations.py::test_two_jobs_of_one_name_do_not_share_a_state_dir",
        "tests/chaos/test_incarnations.py::test_who_takes_over_on_purpose_ends_the_other_one_for_good",
        "tests/chaos/test_requests.py::test_a_savepoint_whose_checkpoint_is_declined_is_refused_and_the_job_goes_on",
        "tests/chaos/test_standby.py::test_a_frozen_leader_of_the_same_machine_is_killed",
        "tests/chaos/test_standby.py::test_a_leader_that_is_told_to_end_hands_over",
        "tests/chaos/test_standby.py::test_a_standby_takes_over_at_once_from_a_leader_of_its_machine_that_is_killed",
        "tests/chaos/test_standby.py::test_heartbeats_do_not_pile_up",
        "tests/chaos/test_input.py",
        "tests/chaos/test_savepoints.py",
    ),
    "kafka_eos/ops/dead_letters": (
        f"{_UNIT}/ops/dead_letters/test_dead_letters.py",
        "tests/unit/protocol/test_dead_letters.py",
        "tests/chaos/test_dead_letters.py",
    ),
    "kafka_eos/embedded": (
        f"{_UNIT}/runtime/exchange/test_forwards.py",
        f"{_UNIT}/testing/test_run_local.py",
        "tests/chaos/test_parallel.py",
        "tests/chaos/test_hung_workers.py",
        "tests/chaos/test_restores.py",
        "tests/chaos/test_dead_workers.py",
        "tests/chaos/test_requests.py",
        "tests/chaos/test_supervision.py",
        "tests/chaos/test_tcp_workers.py",
    ),
    "kafka_eos/runtime/exchange": ("tests/chaos/test_parallel.py", "tests/chaos/test_tcp_workers.py"),
    "kafka_eos/runtime/operators": ("tests/schedules", _VERBS),
    "kafka_eos/protocol": ("tests/unit/protocol", "tests/simulation"),
    "kafka_eos/runtime/state": (_VERBS, "tests/chaos/test_savepoints.py"),
    "kafka_eos/runtime/worker": (
        f"{_UNIT}/embedded",
        f"{_UNIT}/runtime/exchange",
        "tests/chaos/test_parallel.py",
        "tests/chaos/test_failpoints.py",
        "tests/chaos/test_tcp_workers.py",
        _VERBS,
    ),
    "kafka_eos/savepoints": (f"{_UNIT}/runtime/state", "tests/chaos/test_savepoints.py"),
    "kafka_eos/structured_streaming": ("tests/structured_streaming",),
    "connectors/dbapi": (f"{_UNIT}/connectors/dbapi/test_*.py", f"{_CONTRACT}/test_dbapi_sink.py", _SINKS, _PUT_BACK),
    "connectors/delta": (f"{_CONTRACT}/test_delta_*.py", *_LAKES, _PUT_BACK),
    "connectors/files": (*_FILES, f"{_UNIT}/storage/test_power_cuts.py", f"{_CONTRACT}/test_sources.py", *_S3),
    "connectors/files/s3": _S3,
    "connectors/http": (*_OUTBOX, "tests/chaos/test_http.py"),
    "connectors/iceberg": (f"{_CONTRACT}/test_iceberg_*.py", *_LAKES, _PUT_BACK),
    "connectors/idempotent": _OUTBOX,
    "connectors/kafka": (
        f"{_UNIT}/connectors/kafka/test_kafka_*.py",
        f"{_UNIT}/connectors/kafka/test_topic_codecs.py",
        f"{_UNIT}/connectors/kafka/test_warm_pool.py",
        "tests/broker/test_kafka_sink.py",
        "tests/broker/test_kafka_source.py",
        "tests/broker/test_incarnations.py",
        "tests/broker/test_warm_pool.py",
        "tests/broker/test_kafka_provenance.py",
        "tests/broker/test_preview.py",
    ),
    "connectors/kafka/rpc": (
        f"{_UNIT}/connectors/kafka/test_kafka_*.py",
        "tests/broker/test_coordinator_answers.py",
        "tests/broker/test_many_commits.py",
        "tests/broker/test_incarnations.py",
    ),
    "connectors/_lake": (*_LAKES, f"{_CONTRACT}/test_delta_*.py", f"{_CONTRACT}/test_iceberg_*.py", _PUT_BACK),
    "connectors/_outbox": _OUTBOX,
    "connectors/postgres": (
        f"{_UNIT}/connectors/postgres/test_postgres_*.py",
        f"{_CONTRACT}/test_postgres_*.py",
        _SINKS,
        _PUT_BACK,
        "tests/chaos/test_tables.py",
    ),
    "connectors/_staged_tables": (
        f"{_UNIT}/connectors/_staged_tables/test_missing_commits.py",
        f"{_CONTRACT}/test_dbapi_sink.py",
        f"{_CONTRACT}/test_postgres_*.py",
        f"{_CONTRACT}/test_lake_sinks.py",
        _PUT_BACK,
    ),
    "kafka_eos/codecs": (
        f"{_UNIT}/storage/test_published_schemas.py",
        f"{_UNIT}/storage/test_published_formats.py",
        "tests/broker/test_registry.py",
        f"{_UNIT}/runtime/state/test_evolution.py",
        f"{_UNIT}/runtime/state/test_reader.py",
        f"{_UNIT}/runtime/state/test_golden*.py",
    ),
}
"""By the folder of the library, tests beside those of ``tests/unit/<room>``. The files of a folder have those of the
longest name that it begins with.
"""

FILES: Mapping[str, Sequence[str]] = {
    "kafka_eos/protocol/split_assignment.py": (f"{_UNIT}/runtime/exchange/test_routing.py",),
    "kafka_eos/coordination/heartbeats.py": (f"{_UNIT}/coordination/test_job_status.py",),
    "kafka_eos/runtime/worker/watermark_alignment.py": ("tests/unit/protocol/test_watermark_alignment.py",),
    "kafka_eos/embedded/background_work.py": (f"{_UNIT}/audit/test_ledger_provenance.py",),
    "kafka_eos/runtime/operators/event_time.py": (f"{_UNIT}/coordination/test_event_times.py",),
    "connectors/_shared/plain_rows.py": (f"{_CONTRACT}/test_file_source.py", f"{_CONTRACT}/test_file_formats.py"),
    "connectors/polling_source.py": (f"{_CONTRACT}/test_polling_source.py",),
    "connectors/_shared/row_errors.py": (f"{_CONTRACT}/test_lake_sinks.py", f"{_CONTRACT}/test_file_sink.py"),
    "kafka_eos/runtime/worker/task_resources.py": (
        f"{_UNIT}/embedded",
        f"{_UNIT}/runtime/operators/test_failed_opening.py",
    ),
    "kafka_eos/core/provenance_blocks.py": (
        f"{_UNIT}/core/test_origins.py",
        f"{_UNIT}/runtime/exchange/test_provenance.py",
    ),
    "kafka_eos/core/provenance.py": (
        f"{_UNIT}/core/test_provenance.py",
        f"{_UNIT}/runtime/exchange/test_provenance.py",
    ),
    "kafka_eos/core/records.py": (f"{_UNIT}/core/test_records.py", f"{_UNIT}/embedded"),
    "kafka_eos/runtime/worker/source_readers.py": (
        f"{_UNIT}/runtime/worker/test_table_reader.py",
        f"{_UNIT}/runtime/worker/test_delayed_reader.py",
    ),
    "connectors/kafka/sink/producer_pool.py": (f"{_UNIT}/structured_streaming/test_process_reuse.py",),
    "connectors/kafka/sink/shared_transaction.py": (f"{_UNIT}/structured_streaming/test_process_reuse.py",),
    "kafka_eos/plan/window_assigners.py": (
        f"{_UNIT}/runtime/operators/test_assigners.py",
        f"{_UNIT}/runtime/operators/test_windows.py",
    ),
    "kafka_eos/api/window_functions.py": (f"{_UNIT}/runtime/operators/test_windows.py",),
    "kafka_eos/testing/list_source.py": (f"{_UNIT}/testing/test_list_source.py",),
}
"""Files of their own, and what a file needs beside the tests of its room."""

LEFT_OUT: Mapping[str, str] = {
    "connectors": "what is in no folder of it is in FILES, or a text",
    "connectors/_shared": "what is mutated of it is in FILES",
    "kafka_eos": "a front door",
    "kafka_eos/_util": "neither commits, restores, routes, encodes nor deletes",
    "kafka_eos/config": "settings",
    "kafka_eos/core": "what is mutated of it is in FILES",
    "kafka_eos/devtools": "no part of a job",
    "kafka_eos/monitoring": "shows",
    "kafka_eos/ops": "shows; what puts records back is in ROOMS",
    "kafka_eos/runtime": "loads the user's file; the rest is in folders",
    "kafka_eos/audit": "judges what others have written; its corruptions are in tests/audit",
    "kafka_eos/cli": "shows, and asks others",
    "kafka_eos/coordination/time_unit_check.py": "remarks on what watermarks tell of the user's code",
    "kafka_eos/coordination/job_history.py": "the diary of a job: recovery does not read it, the audit and lists do",
    "kafka_eos/coordination/status_file.py": "what happens in a run, for whoever shows it",
    "kafka_eos/coordination/job_status.py": "what commands and the dashboard show of a job; no part of a run reads it",
    "kafka_eos/ops/dead_letters/text_output.py": "shows",
    "kafka_eos/runtime/worker/task_stats.py": "figures that are shown: no decision depends on them",
    "kafka_eos/api": "builds the plan that tests/unit/plan/test_plan*.py and tests/conformance look at",
    "kafka_eos/abc": "contracts; what computes is in FILES",
    "kafka_eos/plan": "describes, and refuses before anything is written",
    "kafka_eos/spark": "opens sessions and starts processes; what runs in these is in ROOMS",
    "kafka_eos/pytest_plugin": "compares the output of a pipeline for its author's tests",
    "kafka_eos/testing": "what its checks let pass is tested with sinks that are broken on purpose",
}
"""Folders, and single files of rooms, that have no mutants, and why. A file is left out only if all of it is."""


class Stage(Enum):
    """Which tests are asked, in this order."""

    FAST = "fast"
    CALLERS = "callers"
    """All other fast tests that call the function of the mutant."""
    SLOW = "slow"


def room_of(file: str) -> str | None:
    """The room that a file is in: the longest of the folders of ROOMS; None if it has no mutants."""
    if file.endswith("__init__.py") or file in LEFT_OUT:
        return None
    rooms = [room for room in ROOMS if file.startswith(f"{room}/")]
    if rooms:
        return max(rooms, key=len)
    return file.rpartition("/")[0] if file in FILES else None


def mutated() -> dict[str, str]:
    """All files that have mutants, and their rooms."""
    return {file: room for file in files() if (room := room_of(file)) is not None}


def nearest(file: str, stage: Stage) -> list[str]:
    """The tests that are asked about a mutant of the file, by file or by function."""
    room = room_of(file)
    assert room is not None
    unit = f"{_UNIT}/{room.removeprefix('kafka_eos/')}"
    own = [unit] if (ROOT / unit).is_dir() else []
    named = dict.fromkeys(test for name in [*FILES.get(file, ()), *own, *ROOMS.get(room, ())] for test in _tests(name))
    if stage is Stage.CALLERS:
        return [test for test in _fast_tests() if test not in named]
    return [test for test in named if test.startswith(_FAST) == (stage is Stage.FAST)]


@cache
def _fast_tests() -> list[str]:
    return sorted(test for folder in _FAST for test in _tests(folder))


def _tests(name: str) -> Iterator[str]:
    """The files, or the function, that a name of the table stands for."""
    if "::" in name:
        yield name
        return
    pattern = name if name.endswith(".py") else f"{name}/**/test_*.py"
    yield from sorted(Path(path).relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))
