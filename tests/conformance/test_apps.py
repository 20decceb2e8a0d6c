"""Every pipeline of the fault tests, on every engine: what is committed is the same.

Those of ``pipelines`` are made for a comparison; these are made to be killed. Each runs as a process of its own, on
the same input, until it has caught up. The gaps are those of ``gaps``: what leads back cannot run on Spark.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.cli.ending import EXIT_USER
from kafka_eos.provenance import HEADER, parse
from tests.chaos.harness import APPS, Job, create_topic, feed, open_transactions, read
from tests.chaos.running import make_job
from tests.conformance.gaps import GAPS

pytestmark = [pytest.mark.spark, pytest.mark.campaign, pytest.mark.timeout(600)]

PAYMENTS = 400
PATIENCE = 240.0
REFERENCE = "embedded-1"
ENGINES: Mapping[str, tuple[str, ...]] = {
    REFERENCE: ("-p", "1"),
    "embedded-3": ("-p", "3"),
    "spark": ("--engine", "spark", "--master", "local[2,3]", "-p", "2"),
}

Row = Mapping[str, Any]
Rows = list[tuple[str, Row]]
"""(origin, value) in the order of the log."""
Facts = Counter[Any]


def _frozen(row: Row) -> tuple[tuple[str, Any], ...]:
    return tuple(sorted(row.items()))


def in_order(per: str) -> Callable[[Rows], Facts]:
    """Equal with their origins, and the rows of each key in the same order."""

    def facts(rows: Rows) -> Facts:
        of_key: dict[Any, list[Any]] = defaultdict(list)
        for origin, row in rows:
            of_key[row[per]].append((origin, _frozen(row)))
        return Counter((key, place, row) for key, found in of_key.items() for place, row in enumerate(found))

    return facts


def same(*fields: str) -> Callable[[Rows], Facts]:
    """Equal as multisets, as far as chance has no say: in these fields, or in all of them, with their origins."""
    if not fields:
        return lambda rows: Counter((origin, _frozen(row)) for origin, row in rows)
    return lambda rows: Counter(tuple(row[field] for field in fields) for _, row in rows)


def last(per: str, *fields: str) -> Callable[[Rows], Facts]:
    """The last row of each key is the same."""
    return lambda rows: Counter({row[per]: tuple(row[field] for field in fields) for _, row in rows}.items())


def copied(rows: Rows) -> Facts:
    """The same rows, however many workers there were to copy them to."""
    return Counter({_frozen(row) for _, row in rows})


@dataclass(frozen=True, slots=True)
class App:
    """A file of ``tests/chaos/apps``, how it is told what to be, and in which senses its output is the same."""

    file: str
    claims: tuple[Callable[[Rows], Facts], ...]
    told: Mapping[str, str] | None = None


def route(name: str, *claims: Callable[[Rows], Facts]) -> App:
    return App("routes.py", claims, {"TEST_ROUTE": name})


CASES: Mapping[str, App] = {
    "totals": App("totals.py", (in_order("account"),)),
    "payments": App("payments.py", (in_order("account"),), {"TEST_BAD": "map,step,emit"}),
    # Which of two sources comes first is chance, and so is what is in a basket with what.
    "baskets": App("baskets.py", (same("origin", "account", "id", "number"),)),
    "rounds": App("rounds.py", (same("account", "id"),)),
    "sums": App("sums.py", (last("account", "count", "total"),)),
    "straight": App("straight.py", (in_order("account"),)),
    "grown": App("grown.py", (same(),)),
    "fan-out": route("fan-out", in_order("account")),
    "once": route("once", in_order("account")),
    # Totals of several accounts meet in a branch.
    "stages": route("stages", same("branch", "id"), same("branch", "count"), last("branch", "count")),
    "letters": route("letters", in_order("account")),
    "spread": route("spread", same()),
    "everywhere": route("everywhere", copied),
    "diamond": route("diamond", same()),
    "keyed-diamond": route("keyed-diamond", same()),
    "apart": route("apart", same()),
    "routed-straight": route("straight", in_order("account")),
}
LETTERS = ("payments", "letters")
GAP = GAPS["loop", "spark"]
LOOPS = ("rounds",)


def test_every_app_is_here() -> None:
    files = {path.name for path in APPS.glob("*.py")}
    routes = set(re.findall(r'^    "([a-z-]+)": \(', (APPS / "routes.py").read_text(), re.MULTILINE))

    assert {app.file for app in CASES.values()} == files
    assert {app.told["TEST_ROUTE"] for app in CASES.values() if app.file == "routes.py" and app.told} == routes


@pytest.mark.parametrize("name", CASES)
def test_committed_outputs_are_the_same(name: str, bootstrap: str, tmp_path: Path) -> None:
    first = make_job(bootstrap, tmp_path, PAYMENTS, CASES[name].file, **(CASES[name].told or {}))
    second = f"{first.name}-2"
    create_topic(bootstrap, second, 3)
    feed(bootstrap, second, range(PAYMENTS, 2 * PAYMENTS))

    found: dict[str, list[Facts]] = {}
    for engine, options in ENGINES.items():
        job = _on(first, engine, {"TEST_INPUT_2": second, "TEST_SECRET": "x"}, letters=name in LETTERS)
        code, said = _run(job, *options)
        if engine == "spark" and name in LOOPS:
            assert code == EXIT_USER and GAP.says in said
            continue
        assert code == 0, said
        assert open_transactions(job) == []
        rows = _rows(job, {first.input: "input", second: "second"})
        assert len({row.get("account", row.get("branch")) for _, row in rows}) >= 4
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
    environment = {**first.environment, **told, "KAFKA_EOS_MAX_RECORDS_PER_EPOCH": "150", "TEST_PAUSE": "0"}
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


def _rows(job: Job, names: Mapping[str, str]) -> Rows:
    rows: Rows = []
    for message in sorted(read(job.bootstrap, job.output), key=lambda m: (m.partition(), m.offset())):
        origin = parse(dict(message.headers())[HEADER].decode())
        rows.append((replace(origin, topic=names[origin.topic]).identity, json.loads(message.value())))
    return rows
