"""The limits: every internal size is one of them, and the environment sets them in a test's processes."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path

import pytest

from kafka_eos.core.errors import ConfigError
from kafka_eos.core.limits import ENVIRONMENT, LIMITS, Limits, parse_limits
from tests.limits import set_limits

ROOT = Path(__file__).parents[3]
NOT_LOOKED_AT = (
    "kafka_eos/_util/jvm", "kafka_eos/api/run.py", "kafka_eos/audit", "kafka_eos/cli", "kafka_eos/devtools",
    "kafka_eos/monitoring", "kafka_eos/ops/doctor", "kafka_eos/ops/epoch_replay",
    "kafka_eos/pytest_plugin", "kafka_eos/spark", "kafka_eos/testing",
)  # fmt: skip
"""Packages that commit, restore, route and delete nothing, and tools."""

NO_SIZES: Mapping[str, str] = {
    "prescribed by a format, a protocol or a server": """
        kafka_eos/runtime/operators/operator_stats.py _MOST_COUNTED
        kafka_eos/codecs/registry/registry_client.py MAX_SCHEMA_ID
        kafka_eos/storage/local_files.py _PRIVATE
        kafka_eos/storage/epoch_ledger.py _DIGITS
        kafka_eos/storage/rolling_log.py _LEVEL
        kafka_eos/storage/remote_storage.py _ACTIVE_SEGMENTS _FIRST_TIME
        kafka_eos/runtime/worker/control_messages.py _MOST_SOCKETS
        kafka_eos/embedded/worker_main.py EXIT_SUPERVISOR_GONE
        kafka_eos/runtime/exchange/in_flight_rows.py _LENGTH
        kafka_eos/runtime/transport/handshake.py _NONCE_BYTES
        kafka_eos/runtime/transport/self_signed.py _SECRET_BYTES
        kafka_eos/runtime/operators/broadcast/broadcast_operator.py _INPUTS
        kafka_eos/runtime/operators/timer_firing.py _NUMBER_BYTES
        kafka_eos/runtime/operators/joins/table_join.py _SIDES
        kafka_eos/core/provenance_blocks.py _PLANES
        kafka_eos/protocol/watermark_alignment.py NO_SPLIT
        kafka_eos/runtime/state/entry_states.py _NUMBER_BYTES
        kafka_eos/runtime/state/key_groups.py MAX_KEY_GROUPS GROUP_BYTES _PRIME
        kafka_eos/runtime/state/row_keys.py _LONG _LONG_BYTES TIME_BYTES
        kafka_eos/runtime/state/memory_store.py _LENGTH _DIGEST
        kafka_eos/runtime/state/rocksdb_options.py _MIB _KIB
        kafka_eos/runtime/state/rocksdb_store.py _HEAP_BYTES _NUMBER_BYTES
        kafka_eos/runtime/state/expiring_state.py _STAMP_BYTES
        connectors/_shared/parquet_files.py _TRAILER _LENGTH _SCHEMA _ROW_GROUPS _METADATA _ENCRYPTION
        connectors/_shared/parquet_files.py _STATISTICS _SIZES _REPETITIONS _DEFINITIONS
        connectors/_shared/thrift_structs.py _LONG_LIST _LONGEST
        connectors/delta/delta_log.py _BITS _LONGEST_BOUND
        connectors/files/source/avro_rows.py _SYNC _CHECKSUM
        connectors/files/source/bounded_reads.py _LEAST
        connectors/files/formats/csv_format.py _LARGEST
        connectors/files/source/locations.py _MOST_LINKS _SECOND
        connectors/files/file_names.py _LONGEST
        connectors/files/source/parquet_levels.py _LENGTH
        connectors/files/source/parquet_pages.py _DICTIONARY _UNPACKED _PACKED _OF_DATA _OF_DATA_2 _OF_LEVELS _RUNS
        connectors/files/source/parquet_pages.py _LEVELS
        connectors/files/source/parquet_pages.py _NUMBER
        connectors/files/source/row_formats.py _LARGEST
        connectors/files/sink/s3_staging.py _MOST
        connectors/kafka/client/librdkafka.py _INCONSISTENT_TOPIC_ID
        connectors/kafka/rpc/twin_names.py _BASE _DIGITS _RANGE
        connectors/kafka/sink/topic_rules.py _UNBOUNDED
        connectors/kafka/sink/partitioner_hashes.py _M _SEED _PRIME _OFFSET _LANE
        connectors/kafka/sink/cluster_limits.py LONGEST_MS
        connectors/kafka/rpc/brokers.py _PORT
        connectors/kafka/client/native_module.py INTERFACE
        connectors/kafka/rpc/certificates.py _VERSION _UTC_TIME _LONG
        connectors/kafka/rpc/error_codes.py TOPIC_UNKNOWN LEADER_UNKNOWN UNSUPPORTED_VERSION ID_NOT_FOUND
        connectors/kafka/rpc/connection.py _NO_LOGIN_HERE
        connectors/kafka/rpc/messages/cluster.py TOPIC BROKER
        connectors/kafka/rpc/messages/connection.py API_VERSIONS _FINALIZED
        connectors/kafka/rpc/messages/logs.py _MAGIC_AT _MAGIC _CONTROL
        connectors/kafka/rpc/messages/transactions.py ADD_PARTITIONS_TO_TXN END_TXN
        connectors/kafka/rpc/security.py _EXPIRED
        connectors/kafka/rpc/messages/wire_format.py _MOST_BYTES_OF_A_VARINT
        connectors/kafka/sink/record_sizes.py _BATCH _FIXED _AROUND _WIDEST
        connectors/kafka/rpc/transaction_status.py NEVER
        connectors/kafka/sink/writer.py _NUMBERS
        connectors/_lake/commit_status.py TAKEN_OVER
        connectors/postgres/sink/staging_catalog.py _LOCK _NOT_PERMITTED
        connectors/postgres/source/snapshot_queries.py _XIDS
        kafka_eos/codecs/operator_state/wrapping_codecs.py _WIDTH
        kafka_eos/codecs/registry/header_ids.py _GUID _ID
        kafka_eos/codecs/registry/registry_client.py _NO_COMPATIBILITY
        kafka_eos/codecs/registry/wire_format.py PREFIX
    """,
    "times in milliseconds": """
        kafka_eos/runtime/state/ttl_clock.py LEAP_MS
        connectors/iceberg/catalogs.py _ANSWER_SECONDS
        connectors/kafka/sink/committer.py FENCED_MS REGISTERED_MS
        connectors/kafka/sink/cluster_limits.py DEFAULT_MS _BROKER_DEFAULT_MS
        connectors/kafka/sink/producer_pool.py _STATISTICS_MS
        connectors/kafka/source/reader.py _STATISTICS_MS
        connectors/kafka/rpc/messages/logs.py _WAIT_MS
        connectors/kafka/rpc/messages/transactions.py _PROOF_TIMEOUT_MS
    """,
    "shown to people": """
        kafka_eos/codecs/type_inspection.py _LONGEST_REASON
        kafka_eos/core/error_messages.py _MOST_PLACES _MAX_MESSAGE
        kafka_eos/ops/dead_letters/selection.py _MOST_NAMES _LONGEST_NAME
        kafka_eos/ops/dead_letters/replay_progress.py _LONGEST_NAME
        kafka_eos/ops/dead_letters/text_output.py _MOST_REASONS
        kafka_eos/embedded/worker_startup.py _SHOWN
        kafka_eos/codecs/avro/differences.py _MOST_SYMBOLS
        kafka_eos/codecs/comparison_lines.py _MOST _LONGEST
        kafka_eos/codecs/json_schema/differences.py _MOST_SHOWN
        kafka_eos/core/record_preview.py _KEY _VALUE _HEADERS _MESSAGE
        kafka_eos/_util/logging_setup.py _MOST_KINDS
        kafka_eos/runtime/operators/rejections.py _LONGEST
        kafka_eos/core/records.py _SHOWN
        connectors/delta/delta_log.py _LONGEST_ERROR
        connectors/files/source/unreadable_rows.py _SHOWN
        connectors/http/client.py _SHOWN
        connectors/kafka/sink/dead_letters.py _LONGEST_KEY
        connectors/kafka/sink/writer.py _MAX_FAILURES
        connectors/kafka/source/subscription.py _MOST_NAMES
        connectors/postgres/sink/statements.py _LONG
    """,
    "a bound whose excess is an error": """
        kafka_eos/config/settings.py _MOST_WORKERS
        kafka_eos/runtime/transport/handshake.py _MOST_HELLO_BYTES
        kafka_eos/runtime/worker/control_messages.py _MOST_BYTES
        kafka_eos/structured_streaming/partition_writer.py _MOST_TASKS
        connectors/files/source/avro_rows.py _MOST_OF_XZ
        connectors/files/sink/open_files.py MOST_FILES
        connectors/_shared/parquet_files.py _MOST_ELEMENTS _CHUNK _LARGEST
        connectors/_shared/thrift_structs.py _DEEPEST
        connectors/files/source/parquet_pages.py _SHARE
        connectors/files/source/row_formats.py LARGEST_ROW LARGEST_BLOCK
        connectors/files/source/unreadable_rows.py _MOST_COLUMNS
        connectors/http/client.py _MOST_BYTES
        connectors/kafka/client/oauth_tokens.py _MOST_BYTES
        connectors/kafka/sink/producer_pool.py MAX_SLOTS
        connectors/kafka/rpc/connection.py _LARGEST_ANSWER
        connectors/postgres/source/snapshot_queries.py _RECENT
        kafka_eos/codecs/avro/expansion.py _MOST_VALUES
        kafka_eos/codecs/avro/foreign_decimals.py _MOST_DIGITS
        kafka_eos/codecs/avro/foreign_schemas.py _SHALLOW
        kafka_eos/codecs/json_schema/differences.py _CONSTANTS_PER_STEP _MOST_HOPS _MOST_MERGED _MOST_STEPS
        kafka_eos/codecs/json_schema/draft_07.py _DEEPEST _MOST_CHARACTERS
        kafka_eos/codecs/protobuf/registry_language.py _DEEPEST
        kafka_eos/codecs/registry/wire_format.py _MOST _MOST_TEXT
        kafka_eos/codecs/registry/response_bounds.py MOST_BYTES
        kafka_eos/codecs/registry/schema_references.py _DEEPEST _MOST _MOST_TEXT
        kafka_eos/codecs/registry/unknown_schemas.py _MOST_IDS
        kafka_eos/core/fault_attribution.py _LARGE
        kafka_eos/core/provenance_blocks.py _MOST_OUTPUTS
        kafka_eos/storage/object_names.py _MOST_INFLATED
    """,
    "attempts, or how many work at once": """
        kafka_eos/runtime/transport/tcp_sockets.py _CONCURRENT
        kafka_eos/storage/object_store.py _PARTS _CREATES
        kafka_eos/storage/provenance_compaction.py MAX_CONCURRENT
        kafka_eos/storage/verification.py MAX_CONCURRENT
        kafka_eos/coordination/epochs.py MAX_CONCURRENT
        kafka_eos/coordination/heartbeats.py _BEATS_PER_LEASE
        kafka_eos/runtime/operators/async_io/thread_pool.py _TIMES
        kafka_eos/protocol/backoff.py _DOUBLINGS
        kafka_eos/runtime/state/rocksdb_store.py BACKGROUND_JOBS _FETCHES
        connectors/kafka/sink/committer.py _LOOKS
        connectors/kafka/source/record_fetchers.py _EVENTS
        connectors/kafka/sink/producer_pool.py WARMERS _SELDOM
        connectors/_lake/committer.py _TRIES
        connectors/_outbox/committer.py MAX_CONCURRENT
        connectors/postgres/sink/write_strategy.py EACH
    """,
    "an estimate, or a buffer of the operating system": """
        connectors/kafka/source/fetched_records.py _HEADER
        kafka_eos/plan/worker_memory.py PROCESS_BYTES _LARGEST_SHARE
        kafka_eos/_util/gc_tuning.py _YOUNG_OBJECTS
        kafka_eos/coordination/status_file.py _BACKLOG
        kafka_eos/coordination/disk_space.py _SOME
        kafka_eos/runtime/exchange/channels.py _ROW
        kafka_eos/runtime/worker/local_state.py _MOST_FILES
        kafka_eos/runtime/exchange/network.py _SOCKET_BUFFER
        kafka_eos/embedded/worker_startup.py _MOVED
        kafka_eos/embedded/worker_process.py _OPEN_FILES _LEAST_FILES
        kafka_eos/runtime/state/rocksdb_store.py _SCRATCH_FILES _MANIFEST_BYTES
        kafka_eos/runtime/state/epoch_scratch.py _SHARE
        kafka_eos/runtime/state/timers.py _LOOKED_UP
        connectors/files/formats/arrow_layout.py _EACH_TABLE
        connectors/files/sink/open_files.py _EACH_BLOCK _EACH_ROW
        connectors/kafka/client/memory.py SHARE _LARGEST_RECORD _BYTES_PER_RECORD _FEWEST_RECORDS
        connectors/kafka/client/memory.py _SMALLEST_RESPONSE _LARGEST_RESPONSE
    """,
    "the precision of a sketch": """
        kafka_eos/api/aggregates/sketches.py _INDEX_BITS _MOST_LISTED _RANK_BITS
    """,
    "the default of a setting": """
        kafka_eos/runtime/state/rocksdb_options.py DEFAULT_MEMORY DEFAULT_CLEANUP_ROWS
    """,
}
"""Whole numbers of modules that no limit is to be made of, by reason."""


def constants() -> Iterator[str]:
    """Whole numbers above 1 that a module names: others are times, shares or marks."""
    for path in sorted(path for room in ("kafka_eos", "connectors") for path in (ROOT / room).rglob("*.py")):
        name = path.relative_to(ROOT)
        if not name.as_posix().startswith(NOT_LOOKED_AT):
            yield from (f"{name.as_posix()} {each}" for each in numbers(ast.parse(path.read_text(encoding="utf-8"))))


def numbers(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        match node:
            case ast.AnnAssign(ast.Name(name), _, ast.expr() as value) | ast.Assign([ast.Name(name)], value):
                pairs = [(name, value)]
            case ast.Assign([ast.Tuple(names)], ast.Tuple(values)):
                pairs = [
                    (each.id, value) for each, value in zip(names, values, strict=True) if isinstance(each, ast.Name)
                ]
            case _:
                continue
        yield from (name for name, value in pairs if is_size(value))


def is_size(value: ast.expr) -> bool:
    names = any(not isinstance(each, ast.Constant | ast.BinOp | ast.operator) for each in ast.walk(value))
    number = None if names else eval(ast.unparse(value))  # noqa: S307 - arithmetic of literals, as the line before says
    return isinstance(number, int) and not isinstance(number, bool) and number > 1


def test_every_internal_size_is_a_limit_or_is_none_for_a_reason() -> None:
    argued = [
        f"{file} {name}"
        for lines in NO_SIZES.values()
        for file, *names in map(str.split, lines.strip().splitlines())
        for name in names
    ]

    assert sorted(constants()) == sorted(argued)


def test_tiny_limits_are_smaller_than_the_usual_ones() -> None:
    usual, tiny = Limits(), Limits.tiny()

    assert tiny.keys() == {each.name for each in fields(Limits)}
    assert all(0 < value < getattr(usual, name) for name, value in tiny.items())


def test_limits_are_set_for_a_block_and_restored_whatever_happens() -> None:
    usual = LIMITS.rows_per_fetch

    def fail() -> None:
        with set_limits(rows_per_fetch=2):
            raise LookupError(LIMITS.rows_per_fetch)

    with pytest.raises(LookupError, match="2"):
        fail()
    assert LIMITS.rows_per_fetch == usual


def test_a_limit_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="'rows=2' is not NAME=NUMBER"):
        parse_limits("rows=2")
    with pytest.raises(ConfigError, match="'rows_per_fetch=0'"):
        parse_limits("rows_per_fetch=0")


@pytest.mark.parametrize(("given", "rows"), [("tiny", "2"), ("rows_per_fetch=7;open_packs=1", "7"), ("", "5000")])
def test_processes_of_a_test_have_the_limits_that_their_environment_says(given: str, rows: str) -> None:
    program = "from kafka_eos.core.limits import LIMITS; print(LIMITS.rows_per_fetch)"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, ENVIRONMENT: given},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.strip() == rows
