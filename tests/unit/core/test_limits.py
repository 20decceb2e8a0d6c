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
NOT_LOOKED_AT = frozenset(
    {"audit", "demo", "devbroker", "ui", "terminal", "cli", "doctor", "metrics", "spark", "testing"}
)
"""Rooms that commit, restore, route and delete nothing, and the engine of a job an epoch."""

NO_SIZES: Mapping[str, str] = {
    "prescribed by a format, a protocol or a server": """
        kafka_eos/checkpoints/files.py _PRIVATE
        kafka_eos/checkpoints/ledger.py _DIGITS
        kafka_eos/checkpoints/logs.py _LEVEL
        kafka_eos/checkpoints/remote.py _ACTIVE_SEGMENTS _FIRST_TIME
        kafka_eos/embedded/control.py _MOST_SOCKETS
        kafka_eos/embedded/worker.py EXIT_ORPHANED
        kafka_eos/exchange/in_flight.py _LENGTH
        kafka_eos/operators/broadcasts/operator.py _INPUTS
        kafka_eos/operators/firing.py _NUMBER_BYTES
        kafka_eos/operators/joins/table.py _SIDES
        kafka_eos/origins.py _PLANES
        kafka_eos/protocol/drift.py NOBODY
        kafka_eos/state/entries.py _NUMBER_BYTES
        kafka_eos/state/keygroups.py MAX_KEY_GROUPS GROUP_BYTES _PRIME
        kafka_eos/state/layout.py _LONG _LONG_BYTES TIME_BYTES
        kafka_eos/state/memory.py _LENGTH _DIGEST
        kafka_eos/state/options.py _MIB _KIB
        kafka_eos/state/rocksdb.py _HEAP_BYTES _NUMBER_BYTES
        kafka_eos/state/ttl.py _STAMP_BYTES
        connectors/delta/log.py _BITS _LONGEST_BOUND
        connectors/files/avro_blocks.py _SYNC _CHECKSUM
        connectors/files/formats/csv.py _LARGEST
        connectors/files/inputs.py _SECOND
        connectors/files/names.py _LONGEST
        connectors/files/parquet_levels.py _LENGTH
        connectors/files/parquet_pages.py _DICTIONARY _UNPACKED _PACKED _OF_DATA _OF_DATA_2 _OF_LEVELS _RUNS _LEVELS
        connectors/files/parquet_pages.py _NUMBER
        connectors/files/row_formats.py _LARGEST
        connectors/files/s3/staging.py _MOST
        connectors/kafka/client.py _INCONSISTENT_TOPIC_ID
        connectors/kafka/hashes.py _M _SEED _PRIME _OFFSET _LANE
        connectors/kafka/limits.py LONGEST_MS
        connectors/kafka/rpc/brokers.py _PORT
        connectors/kafka/rpc/certificates.py _VERSION _UTC_TIME _LONG
        connectors/kafka/rpc/codes.py TOPIC_UNKNOWN LEADER_UNKNOWN UNSUPPORTED_VERSION ID_NOT_FOUND
        connectors/kafka/rpc/connection.py _NO_LOGIN_HERE
        connectors/kafka/rpc/messages/cluster.py TOPIC BROKER
        connectors/kafka/rpc/messages/connection.py API_VERSIONS _FINALIZED
        connectors/kafka/rpc/messages/logs.py _MAGIC_AT _MAGIC _CONTROL
        connectors/kafka/rpc/messages/transactions.py END_TXN
        connectors/kafka/rpc/security.py _EXPIRED
        connectors/kafka/rpc/wire.py _MOST_BYTES_OF_A_VARINT
        connectors/kafka/sizes.py _BATCH _FIXED _AROUND _WIDEST
        connectors/kafka/transactions.py NEVER
        connectors/kafka/writer.py _NUMBERS
        connectors/lake/standings.py OVER
        connectors/postgres/ledger.py _LOCK _NOT_PERMITTED
        connectors/postgres/ranges.py _XIDS
        schemas/counted.py _WIDTH
        schemas/registries/header_ids.py _GUID _ID
        schemas/registries/registry.py _NO_COMPATIBILITY
        schemas/registries/wire_format.py PREFIX
    """,
    "times in milliseconds": """
        kafka_eos/state/clocks.py LEAP_MS
        connectors/iceberg/catalogs.py _ANSWER_SECONDS
        connectors/kafka/committer.py FENCED_MS HELD_MS
        connectors/kafka/limits.py DEFAULT_MS _BROKER_DEFAULT_MS
        connectors/kafka/pool.py _STATISTICS_MS
        connectors/kafka/reader.py _STATISTICS_MS
        connectors/kafka/rpc/messages/logs.py _WAIT_MS
    """,
    "shown to people": """
        kafka_eos/attribution.py _MOST_PLACES _MOST_SAID
        kafka_eos/dead_letters/selection.py _MOST_NAMES _LONGEST_NAME
        kafka_eos/dead_letters/shown.py _MOST_REASONS
        kafka_eos/embedded/preparing.py _SHOWN
        kafka_eos/excerpts.py _KEY _VALUE _HEADERS _MESSAGE
        kafka_eos/logs.py _MOST_KINDS
        kafka_eos/operators/chain.py _LONGEST
        kafka_eos/records.py _SHOWN
        connectors/delta/log.py _LONGEST_ERROR
        connectors/http/client.py _SHOWN
        connectors/kafka/topics.py _MOST_NAMES
        connectors/postgres/statements.py _LONG
    """,
    "a bound whose excess is an error": """
        kafka_eos/settings.py _MOST_WORKERS
        kafka_eos/structured_streaming/task.py _MOST_TASKS
        connectors/files/avro_blocks.py _MOST_OF_XZ
        connectors/files/open_files.py MOST_FILES
        connectors/files/parquet_pages.py _DEEPEST _SHARE
        connectors/files/source.py LONGEST_ROW LARGEST_BLOCK
        connectors/kafka/pool.py MAX_SLOTS
        connectors/kafka/rpc/connection.py _LARGEST_ANSWER
        connectors/kafka/rpc/login.py _MOST_ITERATIONS
        connectors/postgres/ranges.py _RECENT
        schemas/languages/avro/decimals.py _MOST_DIGITS
        schemas/languages/avro/foreign.py _SHALLOW
        schemas/languages/json_schema/differences.py _MOST_HOPS _MOST_STEPS
        schemas/languages/json_schema/drafts.py _DEEPEST
        schemas/languages/protobuf/language.py _DEEPEST
        schemas/registries/decoders.py _MOST _MOST_TEXT
        schemas/registries/references.py _DEEPEST _MOST
        schemas/registries/unknown.py _MOST_IDS
    """,
    "attempts, or how many work at once": """
        kafka_eos/checkpoints/objects.py _PARTS _CREATES
        kafka_eos/checkpoints/packing.py AT_ONCE
        kafka_eos/checkpoints/verify.py AT_ONCE
        kafka_eos/coordinator/commits.py AT_ONCE
        kafka_eos/coordinator/heartbeats.py _A_LEASE
        kafka_eos/operators/requests/threads.py _TIMES
        kafka_eos/protocol/backoff.py _DOUBLINGS
        kafka_eos/state/rocksdb.py BACKGROUND_JOBS
        connectors/kafka/committer.py _LOOKS
        connectors/kafka/pool.py WARMERS _SELDOM
        connectors/lake/committer.py _TRIES
        connectors/outbox/committer.py AT_ONCE
        connectors/postgres/strategies.py EACH
    """,
    "an estimate, or a buffer of the operating system": """
        kafka_eos/collector.py _YOUNG_OBJECTS
        kafka_eos/coordinator/observers.py _BACKLOG
        kafka_eos/coordinator/room.py _SOME
        kafka_eos/embedded/exchanges.py _ROW
        kafka_eos/embedded/network.py _SOCKET_BUFFER
        kafka_eos/embedded/preparing.py _MOVED
        kafka_eos/embedded/process.py _OPEN_FILES _LEAST_FILES
        kafka_eos/state/rocksdb.py _SCRATCH_FILES
        kafka_eos/state/scratch.py _SHARE
        kafka_eos/state/timers.py _LOOKED_UP
        connectors/files/formats/arrow.py _EACH_TABLE
        connectors/files/open_files.py _EACH_BLOCK _EACH_ROW
        connectors/kafka/memory.py SHARE _LARGEST_RECORD
    """,
    "the precision of a sketch": """
        kafka_eos/aggregates/sketches.py _INDEX_BITS _MOST_LISTED _RANK_BITS
    """,
    "the default of a setting": """
        kafka_eos/state/options.py DEFAULT_MEMORY DEFAULT_CLEANUP_ROWS
    """,
}
"""Whole numbers of modules that no limit is to be made of, by reason."""


def constants() -> Iterator[str]:
    """Whole numbers above 1 that a module names: others are times, shares or marks."""
    for path in sorted(path for room in ("kafka_eos", "connectors", "schemas") for path in (ROOT / room).rglob("*.py")):
        name = path.relative_to(ROOT)
        if name.parts[1] not in NOT_LOOKED_AT:
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
