"""The internal sizes of the engine and its connectors: rows per read, keys per part, lines per segment.

Rule: what a size bounds is correct for every size, so a test may shrink any of them. A limit is read where it is used,
each time, and never copied into a default argument or a constant. Sizes that users set are settings; what a protocol,
a format or a server prescribes is a constant where it is used.

``KAFKA_EOS_LIMITS`` shrinks them in a test's processes: ``tiny``, or ``name=value`` joined by ``;``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, fields
from typing import Final

from kafka_eos.core.errors import ConfigError

ENVIRONMENT: Final = "KAFKA_EOS_LIMITS"
_TINY: Final = "tiny"


def _limit(usual: int, tiny: int = 2) -> int:
    """A field: its value, and the value with which a test comes to a second round soonest."""
    return field(default=usual, metadata={_TINY: tiny})


@dataclass(slots=True)
class Limits:
    """All of them. Bytes where the name says so, else entries, rows or objects."""

    # files and lakes
    rows_per_file_read: int = _limit(4096)
    csv_block_bytes: int = _limit(1 << 20, 64)
    avro_block_bytes: int = _limit(64 << 10, 64)
    row_group_bytes: int = _limit(32 << 20, 256)
    """After so many a row group is written, however few rows it has."""
    tables_per_row_group: int = _limit(256)
    """Tables that wait apart: many small ones take far more memory than their bytes, so they are joined."""
    rows_per_lake_row_group: int = _limit(131_072)
    rewritten_file_bytes: int = _limit(128 << 20, 1000)
    open_files: int = _limit(64)
    """Of one writer; rows of other partitions wait in memory."""
    open_file_bytes: int = _limit(128 << 20, 64 << 10)
    """Rows that a writer holds in memory. When there are more, the largest files are written until half is left."""
    manifests_per_iceberg_table: int = _limit(50)
    """After so many, an overwrite has them merged."""
    upload_part_bytes: int = _limit(8 << 20, 5 << 20)
    """Of object stores, which take no smaller part than 5 MiB but the last."""

    # databases
    rows_per_fetch: int = _limit(5000)
    rows_per_insert: int = _limit(20_000)
    insert_bytes: int = _limit(8 << 20, 64)
    """Of texts and bytes. What is kept behind a database's savepoint is at most this, and one batch."""

    # Kafka
    log_fetch_bytes: int = _limit(8 << 20, 100)
    """A broker answers with one batch of records at least."""
    spare_producers: int = _limit(8, 1)
    """Kept warm at most, for epochs that follow each other faster than one producer starts."""
    dead_letters_per_poll: int = _limit(500)
    settled_batches_kept: int = _limit(100)
    """Of a Structured Streaming query: prepared batches and receipts. Spark keeps as many of its own."""

    # operators
    keys_per_partial_aggregate: int = _limit(10_000)
    partial_aggregate_buckets: int = _limit(256)
    """Parts of all keys; one is put together at a time."""
    rows_per_firing: int = _limit(500)
    firings_per_slice: int = _limit(2000, 3)
    """Timers that fire without a result, between two looks at what else is to be done."""

    # between subtasks
    queued_entries_in_memory: int = _limit(256)
    """Batches of a spilling queue; more go to the local disk."""
    queued_partial_rows_in_memory: int = _limit(50_000)
    """Accumulators of a worker for itself: at a barrier it makes those of all keys at once."""
    spill_file_bytes: int = _limit(64 << 20, 100)
    local_channel_entries: int = _limit(8)
    """Batches that may wait for another segment of the same worker."""
    entries_per_turn: int = _limit(16)
    """Entries that are processed between two looks at the network and at the supervisor."""
    loop_entries_before_a_read: int = _limit(8)
    """Batches of a loop that may wait before the sources bring more into it."""
    socket_read_bytes: int = _limit(1 << 20, 5)
    remembered_routes: int = _limit(1_000_000)
    """Keys whose owner is remembered, an exchange."""
    in_flight_bytes_in_memory: int = _limit(1 << 20, 10)
    """Bytes of a log of in-flight rows that are collected before they go to the local disk."""

    # state
    state_rows_per_block: int = _limit(8192)
    scratch_rows_per_page: int = _limit(16)
    map_entries_per_page: int = _limit(1024)
    timers_per_page: int = _limit(256)
    cached_timers: int = _limit(1 << 16)
    pane_keys_per_batch: int = _limit(500)
    pane_keys_per_share: int = _limit(5000)
    savepoint_part_bytes: int = _limit(256 << 20, 1000)
    """Larger state of an operator is stored as several handles, each for a range of key groups."""
    builder_cache_entries: int = _limit(100_000)

    # what is stored
    log_lines_per_segment: int = _limit(200)
    """Where nothing can be appended to, each line writes its object anew: this bounds what a line costs."""
    log_segment_bytes: int = _limit(8 << 20, 200)
    """Some hours of the history of a job with a checkpoint each second."""
    epochs_per_packing: int = _limit(16)
    """Epochs that are forgotten between two looks for what may be packed."""
    packs_per_round: int = _limit(16)
    """With 64 files each, a round makes 1,024 files 16. What is left waits for the next call."""
    files_per_pack: int = _limit(64, 3)
    pack_bytes: int = _limit(1 << 22, 1000)
    """A file, or a pack inflated, that has so many is left as it is."""
    open_packs: int = _limit(4, 1)
    """Packs that a reader keeps inflated: some ten megabytes each at most."""
    objects_per_delete: int = _limit(500)
    """Deleted after one look at who owns the job."""
    copied_bytes: int = _limit(1 << 20, 1000)
    outputs_per_origin_block: int = _limit(1 << 16)
    """Of recorded provenance: some two megabytes."""

    @classmethod
    def tiny(cls) -> dict[str, int]:
        """The value of each with which a test comes to a second round soonest."""
        return {each.name: each.metadata[_TINY] for each in fields(cls)}


def parse_limits(text: str) -> dict[str, int]:
    """The values that the environment gives. Raises ConfigError for a name that is none, or no number above 0."""
    if text == _TINY:
        return Limits.tiny()
    known, found = {each.name for each in fields(Limits)}, dict[str, int]()
    for part in filter(None, text.split(";")):
        name, _, value = part.partition("=")
        if name not in known or not value.isdecimal() or int(value) < 1:
            raise ConfigError(
                f"{ENVIRONMENT}: {part!r} is not NAME=NUMBER, or NAME is no limit: see kafka_eos.core.limits"
            )
        found[name] = int(value)
    return found


LIMITS: Final = Limits(**parse_limits(os.environ.get(ENVIRONMENT, "")))
