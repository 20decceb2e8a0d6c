"""A batch that takes long to decode is followed by smaller ones, so that a checkpoint does not wait for it."""

from __future__ import annotations

import pytest

from kafka_eos.connectors.kafka.source.decoding_pace import DecodingPace


@pytest.mark.limits(records_decoded_first=100)
def test_records_that_each_take_a_request_come_in_batches_of_a_second() -> None:
    pace, sizes = DecodingPace(), []
    for _ in range(4):
        sizes.append(pace.records)
        pace.adapt(pace.records, pace.records * 0.05)

    assert sizes == [100, 20, 40, 20]


@pytest.mark.limits(records_decoded_first=100)
def test_batches_of_fast_records_grow_as_long_as_there_are_so_many() -> None:
    pace = DecodingPace()

    for decoded, wanted in ((100, 200), (150, 200), (200, 400)):
        pace.adapt(decoded, 0.01)
        assert pace.records == wanted


def test_a_record_that_takes_a_minute_comes_alone() -> None:
    pace = DecodingPace()

    pace.adapt(1, 60.0)

    assert pace.records == 1
