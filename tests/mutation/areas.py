"""Which tests a file's mutants are run against: the fast ones of its area, without broker, Spark or whole jobs.

Rule: a file that is not in the table has no mutants. Of the connector of Kafka, what writes is not in it: its tests
need a broker that takes transactions. What ends them, and what reads, is tested against a broker of the tests' own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

PROTOCOL = "tests/protocol"
STATE = "tests/unit/state"
WINDOWS = tuple(f"tests/unit/operators/test_{part}.py" for part in ("triggers", "windows", "window_verbs", "late_rows"))
ROWS = tuple(f"tests/unit/operators/test_{part}.py" for part in ("row_windows", "redefined"))
AGGREGATES = tuple(f"tests/unit/aggregates/test_{part}.py" for part in ("aggregates", "rows", "sketches"))

AREAS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "protocol": {
        "kafka_eos/protocol/actions.py": (f"{PROTOCOL}/test_flights.py", f"{PROTOCOL}/test_attempt.py"),
        "kafka_eos/protocol/alignment.py": (f"{PROTOCOL}/test_alignment.py",),
        "kafka_eos/protocol/assignment.py": ("tests/unit/exchange/test_routing.py",),
        "kafka_eos/protocol/attempt.py": (f"{PROTOCOL}/test_attempt.py",),
        "kafka_eos/protocol/backoff.py": (f"{PROTOCOL}/test_backoff.py",),
        "kafka_eos/protocol/batches.py": (f"{PROTOCOL}/test_batches.py",),
        "kafka_eos/protocol/bootstrap.py": (f"{PROTOCOL}/test_bootstrap.py",),
        "kafka_eos/protocol/checkpoint.py": (f"{PROTOCOL}/test_checkpoint.py", f"{PROTOCOL}/test_flights.py"),
        "kafka_eos/protocol/commit.py": (f"{PROTOCOL}/test_commit.py", f"{PROTOCOL}/test_recovery.py"),
        "kafka_eos/protocol/dead_letters.py": (f"{PROTOCOL}/test_dead_letters.py",),
        "kafka_eos/protocol/drift.py": (f"{PROTOCOL}/test_drift.py",),
        "kafka_eos/protocol/event_time.py": (f"{PROTOCOL}/test_event_time.py",),
        "kafka_eos/protocol/facts.py": (f"{PROTOCOL}/test_attempt.py",),
        "kafka_eos/protocol/housekeeping.py": (f"{PROTOCOL}/test_housekeeping.py",),
        "kafka_eos/protocol/lineage.py": (f"{PROTOCOL}/test_lineage.py", f"{PROTOCOL}/test_recovery.py"),
        "kafka_eos/protocol/lives.py": (f"{PROTOCOL}/test_lives.py", f"{PROTOCOL}/test_life_handshake.py"),
        "kafka_eos/protocol/policy.py": (f"{PROTOCOL}/test_attempt.py",),
        "kafka_eos/protocol/quiescence.py": (f"{PROTOCOL}/test_quiescence.py",),
        "kafka_eos/protocol/recovery.py": (f"{PROTOCOL}/test_recovery.py",),
        "kafka_eos/protocol/retention.py": (f"{PROTOCOL}/test_retention.py",),
        "kafka_eos/protocol/standby.py": (f"{PROTOCOL}/test_standby.py",),
        "kafka_eos/protocol/vitals.py": (f"{PROTOCOL}/test_attempt.py",),
    },
    "operators": {
        "kafka_eos/operators/duplicates.py": ("tests/unit/operators/test_duplicates.py",),
    },
    "committers": {
        "connectors/files/committer.py": (
            "tests/unit/test_file_committer.py",
            *(f"tests/contract/test_file_{part}.py" for part in ("lives", "sink_crashes", "sink")),
        ),
        "connectors/files/disk.py": ("tests/unit/test_file_disk.py", "tests/unit/test_file_committer.py"),
        "connectors/files/standings.py": ("tests/unit/test_file_standings.py",),
        "connectors/lake/standings.py": ("tests/unit/test_lake_standings.py",),
        "connectors/kafka/committer.py": ("tests/unit/test_kafka_committer.py",),
        "connectors/kafka/names.py": ("tests/unit/test_kafka_names.py", "tests/unit/test_kafka_committer.py"),
        "connectors/kafka/rpc/groups.py": ("tests/unit/test_kafka_committer.py", "tests/unit/test_kafka_source.py"),
        "connectors/kafka/rpc/transactions.py": ("tests/unit/test_kafka_committer.py",),
        "connectors/kafka/transactions.py": ("tests/unit/test_kafka_transactions.py",),
        "kafka_eos/coordinator/commits.py": ("tests/unit/coordinator/test_commits.py",),
    },
    "retention": {
        "kafka_eos/checkpoints/ledger.py": ("tests/unit/checkpoints/test_ledger.py",),
        "kafka_eos/checkpoints/retention.py": tuple(
            f"tests/unit/checkpoints/test_{part}.py" for part in ("retention", "ledger")
        ),
    },
    "rescaling": {
        "kafka_eos/exchange/in_flight.py": ("tests/unit/exchange/test_in_flight.py",),
        "kafka_eos/state/keygroups.py": (f"{STATE}/test_keygroups.py", f"{STATE}/test_grouping.py"),
        "kafka_eos/state/local.py": (f"{STATE}/test_rescaling.py",),
        "kafka_eos/state/merging.py": (f"{STATE}/test_rescaling.py", f"{STATE}/test_grouping.py"),
        "kafka_eos/state/restoring.py": (f"{STATE}/test_restoring.py",),
    },
    "timers": {
        "kafka_eos/operators/event_time.py": (
            "tests/unit/operators/test_event_time.py",
            "tests/unit/operators/test_async_map.py",
        ),
        "kafka_eos/operators/firing.py": ("tests/unit/operators/test_event_time.py",),
        "kafka_eos/operators/timestamps.py": (
            "tests/unit/operators/test_event_time.py",
            "tests/unit/operators/test_generated.py",
            "tests/unit/operators/test_late_rows.py",
        ),
        "kafka_eos/state/timers.py": (f"{STATE}/test_timers.py",),
    },
    "windows": {
        "kafka_eos/operators/due.py": ("tests/unit/operators/test_due.py",),
        "kafka_eos/interfaces/assigners.py": ("tests/unit/operators/test_assigners.py",),
        "kafka_eos/operators/windows/alone.py": (*WINDOWS, f"{STATE}/test_golden_windows.py"),
        "kafka_eos/operators/windows/base.py": WINDOWS,
        "kafka_eos/operators/windows/contents.py": WINDOWS,
        "kafka_eos/operators/windows/counted.py": ROWS,
        "kafka_eos/operators/windows/numbered.py": ROWS,
        "kafka_eos/operators/windows/paned.py": WINDOWS,
        "kafka_eos/operators/windows/sessions.py": WINDOWS,
        "kafka_eos/operators/windows/triggers.py": ("tests/unit/operators/test_triggers.py",),
        "kafka_eos/state/panes.py": (f"{STATE}/test_panes.py", f"{STATE}/test_golden_windows.py"),
    },
    "aggregates": {
        f"kafka_eos/aggregates/{part}.py": AGGREGATES for part in ("base", "numbers", "order", "rows", "sketches")
    },
    "ttl": {
        "kafka_eos/state/clocks.py": (f"{STATE}/test_clocks.py",),
        "kafka_eos/state/ttl.py": (
            f"{STATE}/test_ttl.py",
            f"{STATE}/test_clocks.py",
            f"{STATE}/test_rescaling.py",
            "tests/unit/operators/test_expiring.py",
        ),
    },
    "positions": {
        "connectors/kafka/reader.py": ("tests/unit/test_kafka_reader.py",),
        "connectors/kafka/positions.py": ("tests/unit/test_kafka_source.py", "tests/unit/test_kafka_reader.py"),
        "connectors/kafka/survey.py": ("tests/unit/test_kafka_source.py", "tests/unit/test_kafka_offsets.py"),
        "kafka_eos/testing/sources.py": ("tests/unit/testing/test_list_source.py",),
    },
}
