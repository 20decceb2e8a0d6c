"""Outputs of which a file beside the data says where they come from: written as the sink writes them, one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from uuid import uuid4

from kafka_eos.abc.storage import FileRef
from kafka_eos.connectors.kafka.sink.producer_pool import WarmProducer
from kafka_eos.core.ids import EpochId
from kafka_eos.core.provenance import Provenance, parse_provenance
from kafka_eos.core.provenance_blocks import ProvenanceRecorder, encode
from kafka_eos.core.records import Batch, Origin, RawRecord
from kafka_eos.storage import provenance_files as provenance
from kafka_eos.storage.job_storage import LocalStorage
from tests.audit.output_records import Out
from tests.waiting import PATIENCE

_NOWHERE = 99
"""A partition that no topic has: what is recorded there takes up a number, and belongs to no record."""


class _Input(Origin):
    """The input record of one output."""

    def __init__(self, where: Provenance) -> None:
        self.source, self.topic = where.source, where.topic
        self.partitions, self.offsets = [where.partition], [where.offset]

    def timestamps(self) -> Sequence[int]:
        return [0]

    def raw(self, row: int) -> RawRecord:
        raise NotImplementedError


def rounds(visible: Mapping[str, Iterable[Out]]) -> Iterator[tuple[EpochId | None, Mapping[str, Sequence[Out]]]]:
    """Outputs of several topics in their order, in rounds of one attempt each; None: of somebody else."""
    runs = {topic: [(at, list(run)) for at, run in groupby(outs, key=_attempt)] for topic, outs in visible.items()}
    for some in zip_longest(*runs.values()):
        told = {topic: run for topic, run in zip(runs, some, strict=True) if run is not None}
        for attempt in dict.fromkeys(at for at, _ in told.values()):
            yield attempt, {topic: outs for topic, (at, outs) in told.items() if at == attempt}


def _attempt(each: Out) -> EpochId | None:
    where = _where(each)
    return None if where is None else EpochId(where.epoch, where.term)


def _where(each: Out) -> Provenance | None:
    try:
        found = parse_provenance(each.text or "")
    except ValueError:
        return None
    return found if str(found) == each.text and found.term.n < 1 << 31 else None


def write_beside(
    bootstrap: str,
    storage: LocalStorage,
    attempt: EpochId | None,
    told: Mapping[str, Sequence[Out]],
    sinks: Mapping[str, str],
    *,
    commit: bool,
) -> FileRef | None:
    """One transaction, and its file; what somebody else writes keeps its header, and has none."""
    warm = WarmProducer(f"beside.{uuid4().hex}", 0, {"bootstrap.servers": bootstrap, "linger.ms": 20})
    warm.init(PATIENCE)
    warm.begin()
    recordings = {topic: ProvenanceRecorder() for topic in told}
    for topic, outs in told.items():
        for each in outs:
            headers = each.headers_of(storage.root.name) if attempt is None else list(each.headers)
            warm.producer.produce(
                topic, each.value, each.key, each.partition, headers=headers, timestamp=each.timestamp
            )
            if attempt is not None:
                _record(recordings[topic], sinks[topic], each)
    assert warm.producer.flush(PATIENCE) == 0
    warm.producer.commit_transaction(PATIENCE) if commit else warm.producer.abort_transaction(PATIENCE)
    if attempt is None:
        return None
    content = encode(attempt.term, attempt.epoch, warm.producer_id, warm.producer_epoch, recordings)
    ref = FileRef(f"{warm.producer_id}-{warm.producer_epoch}", hashlib.sha256(content).hexdigest(), len(content))
    storage.publish(provenance.provenance_name_of(ref, attempt.epoch), content)
    return ref


def _record(recording: ProvenanceRecorder, sink: str, each: Out) -> None:
    where = _where(each)
    assert where is not None
    branch, dash, number = where.ordinal.rpartition("-")
    count = int(number) + 1
    updates = None if where.update is None else [where.update] * count
    batch = Batch(
        [None] * count, [0] * count, _Input(where), lane=where.lane, updates=updates, branch=[branch + dash] * count
    )
    recording.add(sink, batch, [*[_NOWHERE] * (count - 1), each.partition])
