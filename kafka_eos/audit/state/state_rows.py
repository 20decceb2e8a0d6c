"""Stored state, and the state recomputed from the input, as rows of one form, inside Spark's Python workers.

A row is the encoded key, the sort key (a row key without its key group) and the encoded value. Rule: data that is not
part of a key's contents is removed on both sides: the numbers of list elements (each subtask counts its own), and for a
fold with ``merge=`` the number of its outputs.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa

from kafka_eos._util.temporary_directories import temporary_directory
from kafka_eos.abc.state import StateBackend, StateHandle
from kafka_eos.abc.storage import CheckpointStorage
from kafka_eos.audit.facts.checkpoint_state import Checkpoint, states
from kafka_eos.audit.tables.python_tasks import (
    Backends,
    CapturedRow,
    Tail,
    chain_of,
    columns_of,
    cut_of,
    feed,
    ignore,
    runs,
)
from kafka_eos.codecs import CountedCodec
from kafka_eos.core.ids import Epoch
from kafka_eos.core.json_values import Json
from kafka_eos.runtime.state.key_groups import GROUP_BYTES, group_of
from kafka_eos.runtime.state.local_keys import is_local
from kafka_eos.runtime.state.row_keys import create_key_locator
from kafka_eos.runtime.state.row_store import Row
from kafka_eos.storage.job_storage import LocalStorage

STORED = "operator string, state string, grp binary, place binary, value binary, astray boolean"
"""A row of a checkpoint. ``place`` is null where nothing is compared; one that is ``astray`` lies in the part of a
subtask that does not look there."""
MADE = "operator string, state string, grp binary, place binary, value binary, loose boolean"
"""A row that the input makes. Without ``state`` it is a key: one with an order that nothing tells (``loose``), or any
that the input has, where the recompute begins with a savepoint."""

_STORED = pa.schema([
    ("operator", pa.string()), ("state", pa.string()), ("grp", pa.binary()), ("place", pa.binary()),
    ("value", pa.binary()), ("astray", pa.bool_()),
])  # fmt: skip
_MADE = pa.schema([*list(_STORED)[:-1], pa.field("loose", pa.bool_())])
_NUMBER_BYTES = 8
_AT_ONCE = 5000

Line: TypeAlias = tuple[str, str | None, bytes, bytes | None, bytes | None, bool]


@dataclass(frozen=True)
class Form:
    """The form in which rows of states are compared, by operator and name of the state."""

    blind: frozenset[tuple[str, str]]
    """States that are not compared at all."""
    merging: frozenset[str]
    """Folds with ``merge=``: how many outputs a key has had depends on where epochs ended."""

    def comparable(self, operator: str, described: Mapping[str, Json], rows: Iterable[Row]) -> Iterator[Row]:
        """Yield row keys, with their groups, and values of a state; ``rows`` are in the order of row keys."""
        merged = operator in self.merging
        if described.get("kind") == "list":
            rows = _numbered(rows)
        return ((key, CountedCodec.uncounted(value)) for key, value in rows) if merged else iter(rows)


def _numbered(rows: Iterable[Row]) -> Iterator[Row]:
    """Number the elements of each list from 0."""
    for of, elements in itertools.groupby(rows, key=lambda row: row[0][:-_NUMBER_BYTES]):
        for number, (_, value) in enumerate(elements):
            yield of + number.to_bytes(_NUMBER_BYTES, "big"), value


# ---------------------------------------------------------------- what Spark runs


def stored(at: Checkpoint, form: Form, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield STORED rows of handles. Input: the numbers of the handles."""
    storage, manifest = at.open()
    for batch in batches:
        for (number,) in zip(*columns_of(batch), strict=True):
            lines = _stored(manifest.states[number], storage, form)
            yield from _batches(lines, _STORED)


def restored(
    app: str, workers: int, savepoint: str, form: Form, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield MADE rows of a savepoint, as the present code stores them. Input: one row."""
    for _ in batches:
        with Tail(cut_of(app, workers), None, savepoint) as tail:
            yield from _batches(_made(tail.backends, form), _MADE)


def recomputed(
    app: str, workers: int, savepoint: str | None, form: Form, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield MADE rows. Input: as ``tasks.tail_outputs``."""
    parts = cut_of(app, workers)
    loose: set[tuple[str, bytes]] = set()
    seen: set[tuple[str, bytes]] = set()
    with ExitStack() as stack:
        tail = stack.enter_context(Tail(parts, None, savepoint))
        for batch in batches:
            for _, run in itertools.groupby(map(CapturedRow, *columns_of(batch)), key=CapturedRow.stream):
                rows = list(run)
                tail.push(rows)
                loose.update((row.stage, row.grp) for row in rows if row.loose)
                if savepoint is not None:
                    seen.update((row.stage, row.grp) for row in rows)
        stages = {name: parts.plan.node(name).inputs[0] for name in tail.backends}
        keys = [(name, key) for name, stage in stages.items() for at, key in seen | loose if at == stage]
        yield from _batches(((n, None, key, None, None, (stages[n], key) in loose) for n, key in keys), _MADE)
        made = _made(tail.backends, form)
        # Of a savepoint each task has all keys.
        own = (line for line in made if savepoint is None or (stages[line[0]], line[2]) in seen)
        yield from _batches(own, _MADE)


def recomputed_alone(
    app: str, workers: int, savepoint: str | None, form: Form, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Yield MADE rows of the whole plan, run in one task. Input: INPUT rows in the order of partitions."""
    parts = cut_of(app, workers)
    with ExitStack() as stack:
        backends = stack.enter_context(Backends(parts.plan, savepoint)).by_operator
        outputs = {sink.name: ignore for sink in parts.plan.sinks}
        chain = stack.enter_context(chain_of(parts, parts.plan, backends, outputs))
        for batch in batches:
            for source, raws in runs(batch):
                feed(parts.plan, chain, source, raws)
        yield from _batches(_made(backends, form), _MADE)


# ---------------------------------------------------------------- rows of handles


def _stored(handle: StateHandle, storage: CheckpointStorage, form: Form) -> Iterator[Line]:
    first, last = handle.key_groups
    local = is_local(handle)
    for described, rows in states(handle, storage):
        name, span = str(described["name"]), create_key_locator(described)
        if (handle.operator, name) in form.blind:
            yield from ((handle.operator, name, b"", None, None, False) for _ in rows)
            continue
        for row_key, value in form.comparable(handle.operator, described, rows):
            key, group = row_key[slice(*span(row_key))], int.from_bytes(row_key[:GROUP_BYTES], "big")
            at_home = local or (group == group_of(key) and first <= group <= last)
            yield handle.operator, name, key, row_key[GROUP_BYTES:], value, not at_home


def _made(backends: Mapping[str, StateBackend], form: Form) -> Iterator[Line]:
    with temporary_directory() as scratch:
        storage = LocalStorage(scratch / "made")
        for operator, backend in backends.items():
            for described, rows in states(backend.snapshot(Epoch(0))(storage), storage):
                name, span = str(described["name"]), create_key_locator(described)
                if (operator, name) in form.blind:
                    continue
                for row_key, value in form.comparable(operator, described, rows):
                    yield operator, name, row_key[slice(*span(row_key))], row_key[GROUP_BYTES:], value, False


def _batches(lines: Iterable[Sequence[Any]], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    lines = iter(lines)
    while some := list(itertools.islice(lines, _AT_ONCE)):
        arrays = [pa.array(column, field.type) for column, field in zip(zip(*some, strict=True), schema, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=schema)
