"""Provenance that is kept in the ledger: real runs of jobs whose records do not say where they come from."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from kafka_eos.audit import Check, Conclusion, Verdict
from kafka_eos.core.provenance import HEADER
from kafka_eos.storage import epoch_ledger as ledger
from kafka_eos.storage import object_names as paths
from tests.audit.job import Job
from tests.broker.kafka_kit import visible

pytestmark = pytest.mark.timeout(300)

EVERY_KIND = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter

def positive(text):
    if int(text) < 0:
        raise ValueError("no debts")
    return int(text)

pipeline = Pipeline("{name}", checkpoint_interval=0.2)
amounts = (
    pipeline.source(
        KafkaSource("{input}", value=str), name="orders", on_error=dead_letter("{letters}", provenance={provenance!r})
    )
    .map(positive)
)
amounts.key_by(lambda n: n % 7).fold(
    name="total", init=lambda: 0, step=lambda total, n: total + n, emit=lambda key, total: (key, total)
).map(lambda pair: f"{{pair[0]}}={{pair[1]}}").sink(
    KafkaSink("{totals}", value=str, key=lambda text: text.split("=")[0], provenance={provenance!r}), name="totals"
)
amounts.flat_map(lambda n: [str(n)] * (n % 3)).sink(
    KafkaSink("{copies}", value=str, provenance={provenance!r}), name="copies"
)
amounts.map(str).sink(KafkaSink("{marked}", value=str, key=str, provenance="header"), name="marked")
"""


class Kinds:
    """A job with sinks of every kind; fed and run as often as a test likes."""

    def __init__(self, new_job: Callable[..., Job], topic: Callable[..., str]) -> None:
        self.topics = {role: topic(partitions=2) for role in ("input", "totals", "copies", "marked", "letters")}
        self.job = new_job(EVERY_KIND, provenance="ledger", **self.topics)
        self._fed = 0

    def provenance(self, given: str | None) -> None:
        self.job.app.write_text(EVERY_KIND.format(name=self.job.name, provenance=given, **self.topics))

    def run(self, records: int = 400, workers: int = 2, failpoints: str = "") -> None:
        numbers = range(self._fed, self._fed + records)
        self._fed += records
        rows = [(n % 2, None, b"-1" if n % 50 == 0 else str(n).encode()) for n in numbers]
        self.job.feed(self.topics["input"], rows)
        self.job.run(workers=workers, failpoints=failpoints)

    @property
    def files(self) -> Sequence[str]:
        root = self.job.storage.root
        return sorted(str(path.relative_to(root)) for path in (root / paths.PROVENANCE).iterdir())


@pytest.fixture
def kinds(new_job: Callable[..., Job], topic: Callable[..., str]) -> Kinds:
    return Kinds(new_job, topic)


def found(verdict: Verdict) -> dict[Check, int]:
    return {finding.check: finding.count for finding in verdict.findings}


def headers(job: Job, topic: str) -> set[str]:
    return {name for record in visible(job.bootstrap, topic) for name, _ in record.headers}


def test_outputs_without_a_header_are_proved_by_the_ledger(kinds: Kinds, spark: Any) -> None:
    """With state, fan-out, dead letters and a sink that writes headers, before and after another number of workers."""
    kinds.run()
    kinds.run(workers=1)

    verdict = kinds.job.audit(spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert {} == verdict.skipped
    assert verdict.facts.outputs == verdict.facts.expected
    assert [HEADER not in headers(kinds.job, kinds.topics[role]) for role in ("totals", "copies", "marked")] == [
        True, True, False,
    ]  # fmt: skip
    named = {file.sha256 for entry in ledger.read(kinds.job.storage).values() for file in entry.provenance}
    assert {paths.parse_provenance_name(name).sha256 for name in kinds.files} == named


@pytest.mark.campaign
def test_a_job_that_changed_from_headers_to_the_ledger_and_back_is_audited_whole(kinds: Kinds, spark: Any) -> None:
    for given in ("header", "ledger", "header"):
        kinds.provenance(given)
        kinds.run(120)

    verdict = kinds.job.audit(spark)

    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert HEADER in headers(kinds.job, kinds.topics["totals"])


KILLS = "sink.prepare.after=kill;worker.ack.before=kill;manifest.published=kill;commit.between=kill"
MORE_KILLS = (
    "sink.prepare.before=kill;worker.ack.after=kill;coordinator.acked=kill;manifest.staged=kill;receipt.before=kill"
)


@pytest.mark.campaign
@pytest.mark.parametrize("kills", [KILLS, pytest.param(MORE_KILLS, marks=pytest.mark.campaign)], ids=["some", "more"])
def test_whatever_is_killed_between_the_writing_and_the_receipt_the_ledger_proves_what_is_visible(
    kinds: Kinds, spark: Any, kills: str
) -> None:
    """Transactions that were aborted have recorded what nobody sees, others are committed by another process."""
    kinds.run(600, failpoints=kills)

    verdict = kinds.job.audit(spark)

    assert len(kinds.job.failpoint_log.read_text().splitlines()) == kills.count("kill")
    assert (Conclusion.PASS, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert verdict.facts.kills >= 2


@pytest.mark.slow
def test_provenance_in_an_object_store_proves_the_same(
    new_job: Callable[..., Job], topic: Callable[..., str], s3: str
) -> None:
    kinds = Kinds(new_job, topic)
    kinds.job = job = replace(kinds.job, checkpoints=s3)
    kinds.run(200, failpoints="manifest.published=kill@2")

    status, said = job.ask("audit", str(job.app), "--checkpoint-dir", s3)
    outputs = [word for role in ("totals", "copies") for word in ("--output", kinds.topics[role])]
    ledger = str(job.settings.checkpoint_location(job.name))
    of_topics = job.ask("audit", "topics", *outputs, "--id", "provenance", "--ledger", ledger)

    assert any(name.startswith(paths.PROVENANCE) for name in job.store.list(paths.PROVENANCE))
    assert (0, True) == (status, "PASS: 200 records in" in said), said
    assert (0, True) == (of_topics[0], "PASS:" in of_topics[1]), of_topics[1]


@pytest.mark.campaign
def test_a_file_of_provenance_that_is_gone_or_altered_is_named(kinds: Kinds, spark: Any) -> None:
    kinds.run(60)
    name = kinds.files[0]
    path = kinds.job.storage.root / name
    content = path.read_bytes()
    os.chmod(path, 0o600)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    altered = kinds.job.audit(spark)
    path.unlink()
    gone = kinds.job.audit(spark)

    assert (Conclusion.INCONCLUSIVE, Conclusion.INCONCLUSIVE) == (altered.conclusion, gone.conclusion)
    assert f"{name}: " in altered.headline
    assert "does not match its checksum" in altered.headline
    assert f"{name} " in gone.headline
    assert "is missing" in gone.headline
