"""The internal sizes of the engine and its connectors: rows per read, keys per part, lines per segment.

Rule: what a size bounds is correct for every size, so a test may shrink any of them. A limit is read where it is used,
each time, and never copied into a default argument or a constant. Sizes that users set are settings; what a protocol, a
format or a server prescribes is a constant where it is used.

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
    """Declare a limit: its value, and the value with which a test reaches a second round soonest."""
    return field(default=usual, metadata={_TINY: tiny})


@dataclass(slots=True)
class Limits:
    """All limits: in bytes if the name says so, else in entries, rows or objects."""

    # files and lakes
    rows_per_file_read: int = _limit(4096)
    bytes_per_file_read: int = _limit(16 << 20, 1000)
    """Of rows, and of what is skipped between them."""
    cells_per_file_read: int = _limit(1 << 18)
    """Fewer rows are read at once if they have many columns."""
    csv_block_bytes: int = _limit(1 << 20, 64)
    avro_block_bytes: int = _limit(64 << 10, 64)
    row_group_bytes: int = _limit(32 << 20, 256)
    """The size at which a row group is written, even if it has few rows."""
    tables_per_row_group: int = _limit(256)
    """Tables buffered separately: many small ones take far more memory than their bytes, so they are concatenated."""
    rows_per_lake_row_group: int = _limit(131_072)
    rewritten_file_bytes: int = _limit(128 << 20, 1000)
    open_files: int = _limit(64)
    """Per writer; rows of other partitions stay in memory."""
    open_file_bytes: int = _limit(128 << 20, 64 << 10)
    """Bytes of rows that a writer holds in memory. Beyond it, the largest files are written until half is left."""
    manifests_per_iceberg_table: int = _limit(50)
    """An overwrite merges the manifests of a table that has more."""
    upload_part_bytes: int = _limit(8 << 20, 5 << 20)
    """The size of a part of an upload. Object stores accept no part below 5 MiB except the last."""

    # databases
    rows_per_fetch: int = _limit(5000)
    rows_per_insert: int = _limit(20_000)
    insert_bytes: int = _limit(8 << 20, 64)
    """Bytes of text and binary values. Data behind a database's savepoint is at most this plus one batch."""

    # Kafka
    decoded_bytes: int = _limit(8 << 20, 1000)
    """Bytes of values, headers and decoded keys in a batch, which has at least one record: decoded, they may take fifty
    times their bytes."""
    log_fetch_bytes: int = _limit(8 << 20, 100)
    """A broker returns at least one batch of records."""
    spare_producers: int = _limit(8, 1)
    """Kept ready at most, for epochs that follow each other faster than one producer starts."""
    dead_letters_per_poll: int = _limit(500)
    settled_batches_kept: int = _limit(100)
    """Prepared batches and receipts that a Structured Streaming query keeps, as many as Spark keeps batches."""

    # operators
    keys_per_partial_aggregate: int = _limit(10_000)
    partial_aggregate_buckets: int = _limit(256)
    """Buckets of all keys; one is merged at a time."""
    rows_per_firing: int = _limit(500)
    firings_per_slice: int = _limit(2000, 3)
    """Timers that fire without a result before other pending work is checked."""

    # between subtasks
    queued_entries_in_memory: int = _limit(256)
    """Batches in memory of a spilling queue; more go to the local disk."""
    queued_partial_rows_in_memory: int = _limit(50_000)
    """Accumulators of a worker that it owns itself: at a barrier it emits those of all keys at once."""
    spill_file_bytes: int = _limit(64 << 20, 100)
    local_channel_entries: int = _limit(8)
    """Batches that may wait for another operator chain of the same worker."""
    entries_per_turn: int = _limit(16)
    """Entries that are processed between two checks of the network and the supervisor."""
    loop_entries_before_a_read: int = _limit(8)
    """Batches of a loop that may wait before the sources feed more rows into it."""
    socket_read_bytes: int = _limit(1 << 20, 5)
    remembered_routes: int = _limit(1_000_000)
    """Keys whose owner is cached, per exchange."""
    remembered_key_bytes: int = _limit(128)
    """The owner of a longer key is computed each time, so that long keys do not fill the memory."""
    in_flight_bytes_in_memory: int = _limit(1 << 20, 10)
    """Bytes of a log of in-flight rows that are buffered before they go to the local disk."""

    # state
    state_rows_per_block: int = _limit(8192)
    scratch_rows_per_page: int = _limit(16)
    map_entries_in_first_page: int = _limit(16)
    map_entries_per_page: int = _limit(1024)
    timers_per_page: int = _limit(256)
    cached_timers: int = _limit(1 << 16)
    pane_keys_per_batch: int = _limit(500)
    pane_keys_per_share: int = _limit(5000)
    savepoint_part_bytes: int = _limit(256 << 20, 1000)
    """Larger state of an operator is stored as several handles, each for a range of key groups."""
    small_file_bytes: int = _limit(512 << 10, 1000)
    """A state file up to this size is stored in a pack, with others of its worker and epoch."""
    state_pack_bytes: int = _limit(4 << 20, 2000)
    """A larger pack is divided. A worker holds the small files of an epoch in memory while it stores them."""
    builder_cache_entries: int = _limit(100_000)

    # what is shown
    splits_shown: int = _limit(2000, 20)
    """Splits of a source and worker whose positions are reported: a directory may have tens of thousands of files."""
    new_splits_named: int = _limit(20)
    """New splits that an event names; it counts the others."""

    # what is stored
    log_lines_per_segment: int = _limit(256)
    """Lines per segment in a store without append."""
    log_lines_per_object: int = _limit(16)
    """Objects of one line that are followed by one with the lines of all of them; the same of these, and so on."""
    log_segment_bytes: int = _limit(8 << 20, 200)
    """A few hours of history of a job with one checkpoint per second."""
    epochs_per_packing: int = _limit(16)
    """Epochs that are deleted before the next search for files to pack."""
    packs_per_round: int = _limit(16)
    """Packs that one round creates: with 64 files each, 1,024 files become 16. The next call packs the rest."""
    files_per_pack: int = _limit(64, 3)
    pack_bytes: int = _limit(1 << 22, 1000)
    """A file, or an inflated pack, of this size is not packed further."""
    open_packs: int = _limit(4, 1)
    """Packs that a reader keeps inflated: some ten megabytes each at most."""
    objects_per_delete: int = _limit(500)
    """Objects that are deleted per check of the job's owner."""
    copied_bytes: int = _limit(1 << 20, 1000)
    outputs_per_origin_block: int = _limit(1 << 16)
    """Per block of recorded provenance: some two megabytes."""

    @classmethod
    def tiny(cls) -> dict[str, int]:
        """Return the value of each limit with which a test reaches a second round soonest."""
        return {each.name: each.metadata[_TINY] for each in fields(cls)}


def parse_limits(text: str) -> dict[str, int]:
    """Parse the limits that the environment sets. Raises ConfigError for an unknown name or a value below 1."""
    if text == _TINY:
        return Limits.tiny()
    known, found = {each.name for each in fields(Limits)}, dict[str, int]()
    for part in filter(None, text.split(";")):
        name, _, value = part.partition("=")
        if name not in known or not value.isdecimal() or int(value) < 1:
            raise ConfigError(
                f"{ENVIRONMENT}: {part!r} is not NAME=NUMBER with the name of a limit; kafka_eos.core.limits lists them"
            )
        found[name] = int(value)
    return found


LIMITS: Final = Limits(**parse_limits(os.environ.get(ENVIRONMENT, "")))
