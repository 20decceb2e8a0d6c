"""An epoch is decided, and then the broker aborts its transaction before anybody has committed it."""

from __future__ import annotations

import os
from collections.abc import Callable

from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.storage.job_records import Manifest
from tests.chaos.harness import Job
from tests.chaos.running import check_all, events, has_output, manifests, refused, standing

NewJob = Callable[..., Job]


def _decided(job: Job) -> Manifest:
    """Kill the job between a decision and its first commit; the epoch that is decided."""
    with standing(job, "commit.before", lambda: has_output(job)):
        pass  # and it is killed there
    return manifests(job)[-1]


def _lose(job: Job, decided: Manifest) -> str:
    """Let the broker abort the epoch's transaction, as it does after the transaction timeout."""
    name = next(str(c.payload["transactional_id"]) for c in decided.committables if c.scope.startswith("kafka:"))
    with KafkaRequests(Cluster(job.bootstrap)) as requests:
        assert requests.fence(name, 60_000) == "NONE"
    return name


def test_a_decided_epoch_is_finished_under_another_address_of_the_cluster(new_job: NewJob) -> None:
    """The broker that was named is gone, or the name of one was changed."""
    job = new_job(600, TEST_PAUSE=0.001)
    decided = _decided(job)
    job.bootstrap = job.bootstrap.replace("127.0.0.1", "localhost")

    job.run()

    committed = [event["epoch"] for event in events(job) if event["event"] == "committed"]
    assert decided.epoch in committed
    check_all(job)


def _commit_file(job: Job, decided: Manifest) -> None:
    """What a supervisor that was killed between its two commits has left behind."""
    file = next(c.payload for c in decided.committables if c.scope.startswith("file:"))
    os.link(job.files / str(file["staged"]), job.files / str(file["final"]))


def test_an_epoch_of_which_nothing_is_committed_is_revoked(new_job: NewJob) -> None:
    job = new_job(600, TEST_PAUSE=0.001)
    decided = _decided(job)
    _lose(job, decided)

    job.run()

    revoked = [event for event in events(job) if event["event"] == "revoked"]
    assert [(event["epoch"], event["term"]) for event in revoked] == [(decided.epoch, decided.term)]
    check_all(job)


def test_an_epoch_that_is_committed_in_part_stops_the_job(new_job: NewJob) -> None:
    job = new_job(600, TEST_PAUSE=0.001)
    decided = _decided(job)
    _commit_file(job, decided)
    name = _lose(job, decided)

    for _ in range(2):  # asking again does not change the answer
        said = refused(job, 1)

        assert "CommittableLost" in said
        assert f"epoch {decided.id}" in said
        assert name in said
    assert [event for event in events(job) if event["event"] == "revoked"] == []


def test_an_epoch_that_is_committed_in_part_is_finished_if_it_can_be(new_job: NewJob) -> None:
    job = new_job(600, TEST_PAUSE=0.001)
    _commit_file(job, _decided(job))

    job.run()

    check_all(job)
