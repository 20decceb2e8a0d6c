"""Every pipeline of the fault tests, on every engine: what is committed is the same.

Those of ``pipelines`` are made for a comparison; these are made to be killed. Each runs as a process of its own, on
the same input, until it has caught up.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.chaos.harness import APPS, Job, create_topic, feed, open_transactions, read
from tests.chaos.running import make_job
from tests.conformance.cases import Claim, Counts, Row, distinct, field, final, in_order, same, value
from tests.conformance.runs import REFERENCE, in_log_order, row_of
from tests.waiting import PATIENCE

PAYMENTS = 400
ENGINES: Mapping[str, tuple[str, ...]] = {
    REFERENCE: ("-p", "1"),
    "embedded-3": ("-p", "3"),
    "spark": ("--engine", "spark", "--master", "local[2]", "-p", "2"),
}


def _value(row: Row) -> object:
    return tuple(sorted(row.value.items()))


def of_time(rows: Sequence[Row]) -> Counts:
    """All but what the clock has come to."""
    return same(value)([row for row in rows if row.value["kind"] != "clocked"])


@dataclass(frozen=True, slots=True)
class App:
    """A file of ``tests/chaos/apps``, how it is told what to be, and in which senses its output is the same."""

    file: str
    claims: tuple[Claim, ...]
    told: Mapping[str, str] | None = None


def route(name: str, *claims: Claim) -> App:
    return App("routes.py", claims, {"TEST_ROUTE": name})


BASE = {"TEST_BASE": str(int(time.time()) * 1000 - PAYMENTS)}
"""Event time begins here: a broker drops records of long ago."""
CASES: Mapping[str, App] = {
    "totals": App("totals.py", (in_order(),)),
    "payments": App("payments.py", (in_order(),), {"TEST_BAD": "map,step,emit"}),
    # Which of two sources comes first is chance, and so is what is in a basket with what.
    "baskets": App("baskets.py", (same(field("origin", "account", "id", "number")),)),
    "rounds": App("rounds.py", (same(field("account", "id")),)),
    "sums": App("sums.py", (final(field("count", "total")),)),
    "straight": App("straight.py", (in_order(),)),
    "grown": App("grown.py", (same(),)),
    "windows": App("windows.py", (same(),), BASE),
    "window-verbs": App("window_verbs.py", (of_time,), BASE),
    "joined": App("joined.py", (same(value),), BASE),
    "sequences": App("sequences.py", (same(value),), BASE),
    "fan-out": route("fan-out", in_order()),
    "once": route("once", in_order()),
    # Totals of several accounts meet in a branch.
    "stages": route("stages", same(field("branch", "id")), same(field("branch", "count")), final(field("count"))),
    "letters": route("letters", in_order()),
    "spread": route("spread", same()),
    "everywhere": route("everywhere", distinct(_value)),
    "diamond": route("diamond", same()),
    "keyed-diamond": route("keyed-diamond", same()),
    "apart": route("apart", same()),
    # How long a count lasts the clock decides.
    "expiring": route("expiring", in_order(field("account", "id"))),
    "routed-straight": route("straight", in_order()),
}
ELSEWHERE = frozenset(
    (
        "aside.py",
        "asked.py",
        "avro.py",
        "backfill.py",
        "backlog.py",
        "clocked.py",
        "closing.py",
        "day.py",
        "expiring_windows.py",
        "hostile.py",
        "lake.py",
        "lake_in_bucket.py",
        "made.py",
        "permissions.py",
        "lookups.py",
        "registry.py",
        "restored.py",
        "results.py",
        "rules.py",
        "sends.py",
        "several.py",
        "sqlite.py",
        "tables.py",
        "taken.py",
        "together.py",
        "untyped.py",
        "watched.py",
    )
)
"""They read no Kafka, or several topics, or a format of a registry; or wait for a service that only their test has, or
for the clock at the end; or have windows as others have, and take their time over them; or run until their metrics have
been looked at; or write to a database or a receiver (spark/test_tables.py, spark/test_all_sinks.py,
spark/test_backfill.py, chaos/test_lake.py)."""
SHARED = frozenset(("running_totals.py",))
"""What several apps import."""
LETTERS = ("payments", "letters")
GROUPS = ("account", "branch", "key")
"""What values of an output are of; the first that they have."""


def test_every_app_is_here() -> None:
    files = {path.name for path in APPS.glob("*.py")} - SHARED
    routes = set(re.findall(r'^    "([a-z-]+)": \(', (APPS / "routes.py").read_text(), re.MULTILINE))

    assert {app.file for app in CASES.values()} == files - ELSEWHERE and ELSEWHERE <= files
    assert {app.told["TEST_ROUTE"] for app in CASES.values() if app.file == "routes.py" and app.told} == routes


@pytest.mark.spark
@pytest.mark.campaign
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", CASES)
def test_committed_outputs_are_the_same(name: str, bootstrap: str, tmp_path: Path) -> None:
    first = make_job(bootstrap, tmp_path, PAYMENTS, CASES[name].file, **(CASES[name].told or {}))
    second = f"{first.name}-2"
    create_topic(bootstrap, second, 3)
    feed(bootstrap, second, range(PAYMENTS, 2 * PAYMENTS))

    found: dict[str, list[Counts]] = {}
    for engine, options in ENGINES.items():
        job = _on(first, engine, {"TEST_INPUT_2": second, "TEST_SECRET": "x"}, letters=name in LETTERS)
        code, said = _run(job, *options)
        assert code == 0, said
        assert open_transactions(job) == []
        messages = in_log_order(read(bootstrap, job.output))
        rows = [row_of(message, {first.input: "input", second: "second"}) for message in messages]
        assert len({next(row.value[each] for each in GROUPS if each in row.value) for row in rows}) >= 4
        found[engine] = [claim(rows) for claim in CASES[name].claims]
        if name in LETTERS:
            refused = Counter((m.key(), m.value()) for m in read(bootstrap, job.environment["TEST_LETTERS"]))
            assert refused
            found[engine].append(refused)

    for engine, facts in found.items():
        for mine, theirs in zip(facts, found[REFERENCE], strict=True):
            assert (mine - theirs, theirs - mine) == (Counter(), Counter()), f"{name}: {engine} against {REFERENCE}"


def _on(first: Job, engine: str, told: Mapping[str, str], *, letters: bool) -> Job:
    """The job again, with the same input and all else of its own."""
    name = f"{first.name}-{engine}"
    directory = first.directory / engine
    directory.mkdir()
    environment = {**first.environment, **told, "TEST_PAUSE": "0"}
    create_topic(first.bootstrap, f"{name}-out", 3)
    if letters:
        environment["TEST_LETTERS"] = f"{name}-letters"
        create_topic(first.bootstrap, environment["TEST_LETTERS"], 2)
    return replace(first, name=name, output=f"{name}-out", directory=directory, environment=environment)


def _run(job: Job, *options: str) -> tuple[int, str]:
    process = job.start("", "--until-caught-up", *options)
    try:
        code = process.wait(PATIENCE)
    finally:
        process.kill()
        process.wait()
    return code, job.tail()
