"""Provenance beside the data, as audits read it: what was recorded is what headers would have said."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kafka_eos.audit.facts.epoch_intervals import stream
from kafka_eos.audit.facts.job_ledger import NamedProvenance
from kafka_eos.audit.facts.ledger_provenance import _RecentCache, _WrittenRecords, files, texts_of
from kafka_eos.audit.tables.topic_tables import PROVENANCE
from kafka_eos.core.ids import Epoch, Term
from kafka_eos.core.provenance import format_provenance
from kafka_eos.core.provenance_blocks import ProvenanceRecorder, decode, decode_block, encode
from kafka_eos.core.records import Batch
from kafka_eos.storage.epoch_ledger import ProvenanceRef
from kafka_eos.testing.list_source import ListOrigin


@pytest.mark.limits(outputs_per_origin_block=1 << 16)
@given(st.data())
def test_the_texts_of_a_partition_are_those_of_its_headers(data: st.DataObject) -> None:
    recording, expected = ProvenanceRecorder(), list[tuple[int, str]]()
    for number in range(data.draw(st.integers(1, 4))):
        count = data.draw(st.integers(1, 6))
        rows = sorted(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=8)))
        updates = data.draw(st.none() | st.lists(st.integers(1, 2**40), min_size=len(rows), max_size=len(rows)))
        branch = data.draw(st.none() | st.just(["0-1-"] * len(rows)))
        origin = ListOrigin("in", f'июнь/"{number % 2}".csv', number, data.draw(st.integers(0, 2**40)), [None] * count)
        batch = Batch([None] * len(rows), rows, origin, lane=number, updates=updates, branch=branch)
        places = data.draw(st.lists(st.integers(0, 2), min_size=len(rows), max_size=len(rows)))
        recording.add("out", batch, places)
        expected += zip(places, format_provenance(batch, "job", Term(3), Epoch(9)), strict=True)
    (block,) = decode(encode(Term(3), Epoch(9), 1, 0, {"t": recording})).blocks["t"]

    found = {place: texts_of(decode_block(block), "job.3.9", place).to_pylist() for place in range(4)}

    assert found == {place: [text for at, text in expected if at == place] for place in range(4)}


@pytest.mark.parametrize("name", ["orders", 'report "final".jsonl', "day=2026-06-01/июнь.csv", "50 %, or so"])
def test_a_pattern_of_spark_matches_what_sinks_write(name: str) -> None:
    (text,) = format_provenance(Batch("a", [0], ListOrigin("in", name, 0, 17, "a")), "job", Term(3), Epoch(9))

    assert re.fullmatch(PROVENANCE.replace(r"\z", ""), text)
    assert text.split("/")[2] == stream("in", name).partition("/")[2]


def test_producers_of_several_clusters_may_share_their_numbers() -> None:
    one, other, third = (
        NamedProvenance("job", Epoch(1), ProvenanceRef(*told))
        for told in (("4-0", "aa", 1), ("4-0", "bb", 1), ("5-7", "cc", 1))
    )

    assert files({"/a": [one, third], "/b": [other]}) == {
        (4, 0): (("/a", one), ("/b", other)),
        (5, 7): (("/a", third),),
    }


def test_texts_that_are_kept_are_never_those_of_another_transaction() -> None:
    """One that was let go of leaves its place in memory to the next."""
    kept = _RecentCache[Any](100)

    def first_text(producer: int) -> str:
        recording, origin = ProvenanceRecorder(), ListOrigin("in", "topic", 0, producer, [None])
        recording.add("out", Batch([None], [0], origin), [0])
        written = _WrittenRecords("job", decode(encode(Term(3), Epoch(9), producer, 0, {"t": recording})), "t", kept)
        return str(written.texts(0, np.array([0]))[0])

    assert [first_text(producer) for producer in range(20)] == [f"job.3.9/in/topic/0/{n}/0.0" for n in range(20)]
