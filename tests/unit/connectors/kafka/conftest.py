"""What tests of the Kafka connector need not wait for."""

from __future__ import annotations

import pytest

from kafka_eos.connectors.kafka.client.native_module import load_native_module
from kafka_eos.connectors.kafka.rpc import retrying_request

collect_ignore = [] if load_native_module().module is not None else ["test_native_queue.py", "test_native_sender.py"]


@pytest.fixture(autouse=True)
def no_pauses(instant_topic_search: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic that is missing, and a broker that refuses each connection, are known to be so almost at once."""
    monkeypatch.setattr(retrying_request, "_REFUSED_SECONDS", 0.2)
