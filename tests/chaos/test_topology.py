"""A pipeline with two sources, union, flat_map and a process function, under kills; and where its secrets are not."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.harness import Job, create_topic, feed, read
from tests.chaos.running import nothing_left
from tests.chaos.storm import Storm
from tests.marks import campaign

NewJob = Callable[..., Job]

KILLS = (
    "sink.prepare.after=kill@2",
    "manifest.published=kill@2",
    "snapshot.uploaded=kill@2",
    "commit.between=kill@2",
    "recovery.opened=kill",
)
SECRET = "canary-5e1f0b"
FULL = 7


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("workers", "kills"),
    [pytest.param(3, KILLS[1:3], id="3-few"), campaign(1, KILLS, named="1"), campaign(3, KILLS, named="3")],
)
def test_two_sources_and_a_process_function_survive_kills(
    new_job: NewJob, workers: int, kills: tuple[str, ...]
) -> None:
    mode = {"KAFKA_EOS_PARALLELISM": workers, "KAFKA_EOS_CHECKPOINT_MODE": "unaligned"}
    job = new_job(300, app="baskets.py", TEST_SECRET=SECRET, TEST_PAUSE=0.002, **mode)
    second = job.environment["TEST_INPUT_2"] = f"{job.name}-in-2"
    create_topic(job.bootstrap, second, 2)
    feed(job.bootstrap, second, range(1000, 1300))

    with Storm(job, 300).through(*kills):
        pass
    job.run()

    visible = sorted(read(job.bootstrap, job.output), key=lambda m: (m.partition(), m.offset()))
    in_kafka = [json.loads(message.value()) for message in visible]
    parts = sorted(job.files.glob("part-*"))
    in_files = [json.loads(line) for part in parts for line in part.read_bytes().splitlines()]
    wanted = _items("shop", read(job.bootstrap, job.input)) | _items("web", read(job.bootstrap, second))
    for rows in (in_kafka, in_files):
        _equals(rows, wanted)
    assert _by_account(in_kafka) == _by_account(in_files)
    nothing_left(job)
    assert _places_of_the_secret(job) == []


Stream = tuple[str, str]
"""Source and account: within one the order of the input is kept."""
Item = tuple[int, int, int]


def _items(origin: str, messages: list[Any]) -> dict[Stream, list[Item]]:
    """(id, number, amount) of every item of a source, by account, in the order of its partition."""
    found: dict[Stream, list[Item]] = defaultdict(list)
    for message in sorted(messages, key=lambda m: (m.partition(), m.offset())):
        payment = json.loads(message.value())
        for number in range(payment["amount"] % 3):
            found[origin, payment["account"]].append((payment["id"], number, payment["amount"]))
    return dict(found)


def _equals(rows: list[dict[str, Any]], wanted: dict[Stream, list[Item]]) -> None:
    """Every item is there once, in the order of its source, and the baskets add up in the order of the output."""
    amounts = {(origin, i, n): a for (origin, _), items in wanted.items() for i, n, a in items}
    seen: dict[Stream, list[Item]] = defaultdict(list)
    state: dict[str, tuple[int, int, int]] = {}
    for row in rows:
        place = (row["origin"], row["id"], row["number"])
        assert place in amounts, f"{row} comes from no input record"
        seen[row["origin"], row["account"]].append((row["id"], row["number"], amounts[place]))
        count, total, filled = state.get(row["account"], (0, 0, 0))
        count, total = count + 1, total + amounts[place]
        assert (row["count"], row["total"], row["filled"]) == (count, total, filled), row
        state[row["account"]] = (0, 0, filled + 1) if count == FULL else (count, total, filled)
    assert Counter({s: len(items) for s, items in seen.items()}) == Counter({s: len(i) for s, i in wanted.items()})
    assert dict(seen) == wanted


def _by_account(rows: list[dict[str, Any]]) -> dict[str, list[str]]:
    grouped: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        grouped[row["account"]].append(json.dumps(row, sort_keys=True))
    return grouped


def _places_of_the_secret(job: Job) -> list[str]:
    """Files of the job, its log among them, that hold the secret."""
    files = [path for path in job.directory.rglob("*") if path.is_file()]
    assert job.log in files
    return [str(path) for path in files if SECRET.encode() in path.read_bytes()]
