"""A datetime in state, or in a row that changes subtasks, comes back as it was: the same hour, with the same offset."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from kafka_eos.codecs import exchange_codec, state_codec

HOURS = [datetime.timezone(datetime.timedelta(hours=hours)) for hours in (2, -9)]
BERLIN = ZoneInfo("Europe/Berlin")


class Row(msgspec.Struct):
    at: datetime.datetime
    more: dict[str, list[datetime.datetime]] = {}


@dataclass
class Data:
    at: datetime.datetime


class Model(pydantic.BaseModel):
    at: datetime.datetime | None


class Around(msgspec.Struct):
    model: Model
    content: Any = None


Pass = Callable[[Any, Any], Any]


def through_state(tp: Any, value: Any) -> Any:
    codec = state_codec(tp)
    return codec.decode(codec.encode(value))


def through_an_exchange(tp: Any, value: Any) -> Any:
    codec = exchange_codec(tp)
    (back,) = codec.decode(codec.encode([value]))
    return back


ways = pytest.mark.parametrize("way", [through_state, through_an_exchange])


def at(zone: datetime.tzinfo | None) -> datetime.datetime:
    return datetime.datetime(2024, 3, 31, 1, 30, 0, 5, tzinfo=zone)


def shown(time: datetime.datetime) -> tuple[str, object]:
    return time.isoformat(), time.utcoffset()


@ways
@pytest.mark.parametrize("zone", [*HOURS, datetime.UTC, None], ids=str)
def test_a_datetime_keeps_its_offset(way: Pass, zone: datetime.tzinfo | None) -> None:
    time = at(zone)

    assert shown(way(datetime.datetime, time)) == shown(time)
    assert shown(way(Data, Data(time)).at) == shown(time)
    assert shown(way(Model, Model(at=time)).at) == shown(time)
    assert shown(way(Around, Around(Model(at=time))).model.at) == shown(time)
    row = way(Row, Row(time, {"b": [time], "a": [at(HOURS[0]), at(datetime.UTC)]}))
    assert shown(row.at) == shown(row.more["b"][0]) == shown(time)
    assert [shown(each) for each in row.more["a"]] == [shown(at(HOURS[0])), shown(at(datetime.UTC))]


@ways
def test_a_datetime_of_json_keeps_its_offset(way: Pass) -> None:
    text = b'{"at": "2024-03-31T01:30:00+02:00"}'

    assert way(Row, msgspec.json.decode(text, type=Row)).at.hour == 1
    assert way(Model, Model.model_validate_json(text)).at.hour == 1


@ways
@pytest.mark.parametrize(
    ("tp", "make"),
    [
        (Row, Row),
        (Data, Data),
        (Model, lambda time: Model(at=time)),
        (Around, lambda time: Around(Model(at=None), time)),
        (list[datetime.datetime], lambda time: [time]),
        (tuple[datetime.datetime, ...], lambda time: (time,)),
        (set[datetime.datetime], lambda time: {time}),
        (frozenset[datetime.datetime], lambda time: frozenset({time})),
        (dict[str, datetime.datetime], lambda time: {"at": time}),
    ],
    ids=["Struct", "dataclass", "model", "Any", "list", "tuple", "set", "frozenset", "dict"],
)
def test_a_zone_with_rules_is_rejected(way: Pass, tp: Any, make: Callable[[Any], Any]) -> None:
    """An offset in its place would give another time after ``+ timedelta(days=1)`` at the change of clocks."""
    with pytest.raises(ValueError, match=r"has the zone Europe/Berlin, .* convert it with .astimezone\(datetime.UTC\)"):
        way(tp, make(at(BERLIN)))


@ways
def test_of_several_times_the_one_that_would_change_is_named(way: Pass) -> None:
    with pytest.raises(ValueError, match=r"^2024-03-31 01:30:00\.000005\+01:00 has the zone Europe/Berlin"):
        way(Row, Row(at(HOURS[0]), {"a": [at(datetime.UTC), at(BERLIN), at(HOURS[1])]}))


@ways
def test_an_offset_that_would_be_rounded_is_rejected(way: Pass) -> None:
    with pytest.raises(ValueError, match="would come back as something else"):
        way(Row, Row(at(datetime.timezone(datetime.timedelta(seconds=3208)))))


@ways
@pytest.mark.parametrize("time", [at(HOURS[0]), at(None), datetime.time(1, tzinfo=HOURS[0])], ids=str)
def test_a_time_of_unknown_type_that_would_change_is_rejected(way: Pass, time: Any) -> None:
    for tp, value in ((Any, time), (Any, {"a": [time]}), (Around, Around(Model(at=None), [time]))):
        with pytest.raises(ValueError, match="declare"):
            way(tp, value)


@ways
def test_a_time_of_unknown_type_in_utc_is_kept(way: Pass) -> None:
    assert shown(way(Any, [at(datetime.UTC)])[0]) == shown(at(datetime.UTC))
    assert shown(way(Around, Around(Model(at=None), at(datetime.UTC))).content) == shown(at(datetime.UTC))


def test_equal_values_have_equal_bytes() -> None:
    """The order of a set or a dict does not matter, with times that are encoded as text, too."""

    class Sets(msgspec.Struct):
        names: set[str]
        at: datetime.datetime

    codec = state_codec(Sets)
    names = [f"name{number}" for number in range(50)]
    assert codec.encode(Sets(set(names), at(HOURS[0]))) == codec.encode(Sets({*names[::-1]}, at(HOURS[0])))
