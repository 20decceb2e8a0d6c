"""Provenance beside the data: from the location of an output in its topic to the text of its header.

A stored batch has the id of its producer and the numbers of its records. The file of that producer's transaction has
the origin of each record. The Java client does not expose batches, so the tasks read their headers themselves
(``rpc.logs``).

Rule: brokers determine the producer of a record, and the job's ledger determines the file of that producer. A named
file that is missing or altered ends the audit. Records of a producer that is not in the ledger have no provenance.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.functions import arrow_udf

from kafka_eos.audit.facts.job_ledger import NamedProvenance
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.rpc.messages.logs import RecordBatchHeader
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.provenance import encode_name
from kafka_eos.core.provenance_blocks import (
    ProvenanceBlock,
    TransactionProvenance,
    decode,
    decode_block,
    decode_output_partitions,
)
from kafka_eos.storage.epoch_ledger import ProvenanceRef
from kafka_eos.storage.provenance_files import ProvenanceReader
from kafka_eos.storage.storage_factory import open_storage

if TYPE_CHECKING:
    from pyspark.sql import Column

T = TypeVar("T")
Producer: TypeAlias = tuple[int, int]
"""Its id and its epoch: one transaction forever."""
Files: TypeAlias = Mapping[Producer, tuple[tuple[str, NamedProvenance], ...]]
"""Where the file of each transaction is: the address of a job's checkpoints, and the file in it. Producers of several
clusters may share their numbers."""

_END: Final = 1 << 62
_TRANSACTIONS: Final = 256
"""The number of transactions kept in memory, deflated: more than may be open in one partition."""
_BLOCKS: Final = 32
"""The number of blocks whose texts are kept: some five megabytes each."""


@dataclass(frozen=True)
class ProvenanceFiles:
    """The parameters of the tasks. ``sinks``: by topic, the only one whose outputs count; None: all do."""

    bootstrap: str
    config: Mapping[str, Any] = field(repr=False)
    files: Files
    sinks: Mapping[str, str] | None = None

    def text(self, topic: Column, partition: Column, offset: Column) -> Column:
        """Return the header text that each record would have; null where no file has it."""

        def header_texts(batches: Iterator[tuple[pa.Array, pa.Array, pa.Array]]) -> Iterator[pa.Array]:
            with closing(_Lookup(self)) as lookup:
                for columns in batches:
                    yield lookup.texts(*columns)

        make: Any = arrow_udf  # its stub knows no function with hints
        found: Column = make(header_texts, "string")(topic, partition, offset)
        return found


def files(places: Mapping[str, Iterable[NamedProvenance]]) -> Files:
    """Return the provenance files of each transaction.

    ``places``: the files that the ledger of each job names, by the address of its checkpoints.
    """
    found: dict[Producer, tuple[tuple[str, NamedProvenance], ...]] = {}
    for place, some in places.items():
        for named in some:
            producer, _, epoch = named.file.name.partition("-")
            known = found.get((int(producer), int(epoch)), ())
            if (place, named.file) not in ((where, other.file) for where, other in known):
                found[int(producer), int(epoch)] = (*known, (place, named))
    return found


# ---------------------------------------------------------------- what tasks do


class _Lookup:
    """The lookups of one task. Records come in the order of their partition, or the log is read again."""

    def __init__(self, files_and_cluster: ProvenanceFiles) -> None:
        self._beside = files_and_cluster
        self._rpc = KafkaRequests(Cluster(files_and_cluster.bootstrap, files_and_cluster.config))
        self._logs: dict[tuple[str, int], _Log] = {}
        self._open: _RecentCache[_WrittenRecords | None] = _RecentCache(_TRANSACTIONS)
        self._texts: _RecentCache[pa.Array] = _RecentCache(_BLOCKS)
        self._shelves: dict[str, ProvenanceReader] = {}

    def close(self) -> None:
        self._rpc.close()

    def texts(self, topics: pa.Array, partitions: pa.Array, offsets: pa.Array) -> pa.Array:
        """Return one text per record, null if its origin is unknown."""
        named, of, at = topics.dictionary_encode(), np.asarray(partitions), np.asarray(offsets)
        places = np.stack([np.asarray(named.indices), of])
        found = np.full(len(at), None, dtype=object)
        for topic, partition in np.unique(places, axis=1).T.tolist():
            rows = np.flatnonzero((places[0] == topic) & (of == partition))
            for some, texts in self._of_partition(named.dictionary[topic].as_py(), partition, at[rows]):
                found[rows[some]] = texts
        return pa.array(found, pa.string())

    def _of_partition(
        self, topic: str, partition: int, offsets: np.ndarray[Any, Any]
    ) -> Iterator[tuple[np.ndarray[Any, Any], Any]]:
        """Return the indices of the records of one partition, and their texts, by transaction."""
        log = self._logs.setdefault((topic, partition), _Log(self._rpc, topic, partition))
        batches = log.covering(int(offsets.min()), int(offsets.max()))
        if not batches:
            return
        firsts = np.array([batch.first for batch in batches])
        of = np.searchsorted(firsts, offsets, "right") - 1
        inside = (of >= 0) & (offsets <= np.array([batch.last for batch in batches])[of])
        numbers = np.array([batch.sequence for batch in batches])[of] + offsets - firsts[of]
        producers = [(batch.producer_id, batch.producer_epoch) for batch in batches]
        known = {producer: self._written(producer, topic) for producer in set(producers)}
        for producer, written in known.items():
            if written is not None:
                same_producer = np.array([one == producer for one in producers])
                some = np.flatnonzero(inside & same_producer[of])
                yield some, written.texts(partition, numbers[some])

    def _written(self, producer: Producer, topic: str) -> _WrittenRecords | None:
        """Return what a transaction wrote to a topic; None if that is unknown."""
        return self._open.get((producer, topic), lambda: self._read(producer, topic))

    def _read(self, producer: Producer, topic: str) -> _WrittenRecords | None:
        named = self._beside.files.get(producer, ())
        candidates = [
            (one.job, origins)
            for place, one in named
            if self._is_of(origins := self._origins(place, one, producer), topic)
        ]
        if len(candidates) > 1:
            raise CorruptCheckpoint(
                f"several provenance files describe producer {producer[0]} epoch {producer[1]} and topic {topic}: "
                "name the directory of the job that writes to this cluster, and no other"
            )
        return _WrittenRecords(*candidates[0], topic, self._texts) if candidates else None

    def _origins(self, address: str, named: NamedProvenance, producer: Producer) -> TransactionProvenance:
        if address not in self._shelves:
            self._shelves[address] = ProvenanceReader(open_storage(address))
        return _decoded(self._shelves[address].load(named.file.ref, named.epoch), named.file, producer)

    def _is_of(self, origins: TransactionProvenance, topic: str) -> bool:
        """Return whether a file is that of a producer. One of another cluster may have the same numbers, with other
        sinks or topics.
        """
        blocks = origins.blocks.get(topic, ())
        if not blocks or self._beside.sinks is None or topic not in self._beside.sinks:
            return bool(blocks)
        first = decode_block(blocks[0])
        return first.names[first.spans[0].sink] == self._beside.sinks[topic]


def _decoded(content: bytes, kept: ProvenanceRef, producer: Producer) -> TransactionProvenance:
    try:
        found = decode(content)
    except ValueError as error:
        raise CorruptCheckpoint(f"the provenance of producer {kept.name} cannot be read: {error}") from error
    if (found.producer_id, found.producer_epoch) != producer:
        raise CorruptCheckpoint(f"the provenance of producer {kept.name} belongs to another producer")
    return found


class _Log:
    """The headers of the batches of one partition, read forward."""

    def __init__(self, rpc: KafkaRequests, topic: str, partition: int) -> None:
        self._rpc = rpc
        self._topic = topic
        self._partition = partition
        self._known: list[RecordBatchHeader] = []
        self._more: Iterator[RecordBatchHeader] | None = None
        self._from = _END

    def covering(self, first: int, last: int) -> list[RecordBatchHeader]:
        """Return the batches that contain offsets from ``first`` to ``last``, up to the end of the log."""
        if self._more is None or first < self._from:
            self._more, self._known = self._rpc.batches(self._topic, self._partition, first, _END), []
        self._from = first
        self._known = [batch for batch in self._known if batch.last >= first]
        while not self._known or self._known[-1].last < last:
            batch = next(self._more, None)
            if batch is None:
                break
            self._known.append(batch)
        return self._known


class _WrittenRecords:
    """The records that one transaction wrote to one topic, as the texts of headers."""

    def __init__(self, job: str, origins: TransactionProvenance, topic: str, texts: _RecentCache[pa.Array]) -> None:
        """``texts``: a cache of recently used blocks of all transactions."""
        self._attempt, self._texts = f"{job}.{origins.term.n}.{origins.epoch.n}", texts
        self._name = origins.producer_id, origins.producer_epoch, topic
        self._blocks = origins.blocks.get(topic, ())
        self._counts = [np.bincount(np.asarray(decode_output_partitions(block))) for block in self._blocks]

    def texts(self, partition: int, numbers: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """Return the texts of records in a partition, by the brokers' record numbers; None beyond the known ones."""
        found = np.full(len(numbers), None, dtype=object)
        ends = np.cumsum([counts[partition] if partition < len(counts) else 0 for counts in self._counts])
        of = np.searchsorted(ends, numbers, "right")
        for number in np.unique(of[of < len(ends)]).tolist():
            some = of == number
            start = int(ends[number - 1]) if number else 0
            texts = self._texts.get((*self._name, partition, number), partial(self._of_block, partition, number))
            found[some] = texts.take(pa.array(numbers[some] - start)).to_numpy(zero_copy_only=False)
        return found

    def _of_block(self, partition: int, number: int) -> pa.Array:
        return texts_of(decode_block(self._blocks[number]), self._attempt, partition)


def texts_of(block: ProvenanceBlock, attempt: str, partition: int) -> pa.Array:
    """Return the texts of a block's records in a partition, in order."""
    rows = np.flatnonzero(np.asarray(block.output_partitions) == partition)
    starts = [f"{attempt}/{block.names[span.source]}/{encode_name(block.names[span.topic])}/" for span in block.spans]
    lanes = [f"/{span.lane}." for span in block.spans]
    spans = pa.array(np.repeat(np.arange(len(block.spans)), [span.count for span in block.spans])[rows])
    updates = np.asarray(block.updates)[rows]
    numbered = pc.binary_join_element_wise("", _text(updates), "/")
    return pc.binary_join_element_wise(
        pa.array(starts).take(spans),
        _text(np.asarray(block.partitions)[rows]),
        "/",
        _text(np.asarray(block.offsets)[rows]),
        pa.array(lanes).take(spans),
        pa.array(list(block.names)).take(pa.array(np.asarray(block.branches)[rows])),
        _text(np.asarray(block.numbers)[rows]),
        pc.if_else(pa.array(updates > 0), numbered, pa.scalar("")),
        "",
    )


def _text(numbers: np.ndarray[Any, Any]) -> pa.Array:
    return pa.array(numbers).cast(pa.string())


class _RecentCache(Generic[T]):
    """A cache of the most recently used objects, by key."""

    def __init__(self, most: int) -> None:
        self._most, self._made = most, OrderedDict[Any, T]()

    def get(self, key: Any, make: Callable[[], T]) -> T:
        if key in self._made:
            self._made.move_to_end(key)
            return self._made[key]
        if len(self._made) >= self._most:
            self._made.popitem(last=False)
        found = self._made[key] = make()
        return found
