"""What the engine gives to readers and writers: the policy where none is given, and what they share."""

from __future__ import annotations

import pytest

from kafka_eos.abc.services import Resources, Services
from kafka_eos.core.errors import EnvironmentFailed, PoisonRecord
from kafka_eos.core.records import Batch
from kafka_eos.testing.list_source import ListOrigin


class Client:
    """One that is shared."""


class Known:
    """Something that was learnt."""


def test_a_resource_is_made_by_who_asks_first() -> None:
    resources = Resources()
    client = resources.get(Client, "a", Client)

    assert resources.get(Client, "a", Client) is client
    assert resources.get(Client, "b", Client) is not client


def test_two_kinds_may_have_one_key() -> None:
    resources = Resources()
    resources.get(Client, "a", Client)

    assert type(resources.get(Known, "a", Known)) is Known


@pytest.mark.parametrize(("error", "raised"), [(ValueError("odd"), PoisonRecord), (OSError("down"), EnvironmentFailed)])
def test_without_an_engine_what_cannot_be_processed_stops_the_job(error: Exception, raised: type[Exception]) -> None:
    services, origin = Services(), ListOrigin("in", "events", 3, 10, "xy")
    with pytest.raises(raised, match="events.*11"):
        services.reject_record("in", origin.raw(1), error)
    with pytest.raises(raised, match="events.*11"):
        services.reject_row(Batch(["x"], [1], origin), 0, "out", error)
