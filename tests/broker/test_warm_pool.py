"""Warm producers on a real broker."""

from __future__ import annotations

import gc
import uuid
import weakref

from kafka_eos.connectors.kafka.pool import Warm


def test_a_producer_goes_with_its_last_reference_and_not_when_the_garbage_collector_finds_it(bootstrap: str) -> None:
    """Else every epoch leaves its producer's threads and buffers behind, for as long as the collector pleases."""
    gc.disable()
    try:
        warm = Warm(f"warm-{uuid.uuid4().hex[:8]}", 0, {"bootstrap.servers": bootstrap})
        warm.init(30.0)
        alive = weakref.ref(warm)

        del warm

        assert alive() is None
    finally:
        gc.enable()
