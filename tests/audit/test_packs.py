"""Provenance in packs: jobs that run for many epochs, and are killed while they pack, are audited as all others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.audit import Check, Conclusion, Verdict
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
from kafka_eos.core.limits import LIMITS
from kafka_eos.storage import epoch_ledger as ledger
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import provenance_packs as packs
from kafka_eos.storage import verification as verify
from kafka_eos.storage.provenance_compaction import ProvenancePacker
from kafka_eos.storage.provenance_files import ProvenanceReader, list_provenance
from tests.audit.job import Job
from tests.limits import set_limits

pytestmark = pytest.mark.timeout(300)

MANY_EPOCHS = """
import time
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

def slowly(text):
    time.sleep(0.01)
    return int(text)

pipeline = Pipeline("{name}", checkpoint_interval=0.05, batch_size=1)
(
    pipeline.source(KafkaSource("{input}", value=str), name="numbers")
    .map(slowly)
    .key_by(lambda n: n % 7)
    .fold(name="total", init=lambda: 0, step=lambda total, n: total + n, emit=lambda key, total: (key, total))
    .map(lambda pair: f"{{pair[0]}}={{pair[1]}}")
    .sink(KafkaSink("{totals}", value=str, key=lambda text: text.split("=")[0], provenance="ledger"), name="totals")
)
"""
RECORDS = 1_000


@pytest.fixture
def job(new_job: Callable[..., Job], topic: Callable[..., str]) -> Job:
    made: Job = new_job(MANY_EPOCHS, input=topic(partitions=2), totals=topic(partitions=2))
    made.feed(made.topics["input"], [(n % 2, None, str(n).encode()) for n in range(RECORDS)])
    return made


def found(verdict: Verdict) -> tuple[Conclusion, dict[Check, int]]:
    return verdict.conclusion, {finding.check: finding.count for finding in verdict.findings}


def pack_of(job: Job) -> Path:
    """One of its packs."""
    return job.storage.root / next(name for name in job.storage.list(paths.PROVENANCE) if "pack" in name)


def named(job: Job) -> int:
    """How many files its ledger names."""
    return sum(len(entry.provenance) for entry in ledger.read(job.storage).values())


@pytest.mark.campaign
def test_a_job_that_is_killed_while_it_packs_loses_no_provenance(job: Job, spark: Any) -> None:
    """And a pack that is damaged is named by the audit as by ``checkpoints verify``."""
    kills = "packing.published=kill;packing.deleted=kill"
    job.run(workers=2, failpoints=kills)

    sound = job.audit(spark)
    problems = verify.verify_job(job.storage, job.name)
    pack = pack_of(job)
    content = pack.read_bytes()
    pack.chmod(0o600)
    pack.write_bytes(content[:-1])
    damaged, of_damaged = job.audit(spark), verify.verify_job(job.storage, job.name)

    assert len(job.failpoint_log.read_text().splitlines()) == 2
    assert named(job) > LIMITS.files_per_pack
    assert len(list_provenance(job.storage)) < named(job)
    assert found(sound) == (Conclusion.PASS, {}), sound.headline
    assert (sound.facts.outputs, problems) == (RECORDS, [])
    assert damaged.conclusion is Conclusion.INCONCLUSIVE
    assert pack.name in damaged.headline
    assert of_damaged[0].object == f"{paths.PROVENANCE}/{pack.name}"
    assert all("missing, or in the damaged" in problem.what for problem in of_damaged[1:])


@contextmanager
def packing(job: Job) -> Iterator[None]:
    """What there is is packed as long as somebody reads, the oldest two first, until there is one pack."""
    done, failures, whole = threading.Event(), list[str](), packs.groups
    packer = ProvenancePacker(job.storage, failures.append)

    def pack() -> None:
        while not done.wait(0.02):
            packer.on_epochs_dropped(LIMITS.epochs_per_packing)

    with set_limits(files_per_pack=2), pytest.MonkeyPatch.context() as patch:
        patch.setattr(packs, "groups", lambda files: whole(files)[:1])
        thread = threading.Thread(target=pack)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
    assert failures == []


@pytest.mark.campaign
def test_audits_judge_as_ever_while_what_they_read_is_packed(
    job: Job, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    job.run(workers=2)
    before, ledgers = len(list_provenance(job.storage)), (str(job.storage.root),)
    question = TopicAuditOptions(job.bootstrap, outputs=(job.topics["totals"],), id="provenance", ledgers=ledgers)

    with packing(job):
        of_job = job.audit(spark)
        of_topics = audit_topics(question, spark=spark)

    shelf = ProvenanceReader(job.storage)
    files = [(kept, epoch) for epoch, entry in ledger.read(job.storage).items() for kept in entry.provenance]
    assert len(list_provenance(job.storage)) < before
    assert found(of_job) == (Conclusion.PASS, {}), of_job.headline
    assert found(of_topics) == (Conclusion.PASS, {}), of_topics.headline
    assert all(shelf.load(kept.ref, epoch.epoch) for kept, epoch in files)
