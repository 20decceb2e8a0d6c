"""Plant a bug in the engine, run a real job with it, and demand that the checks notice, and notice the right thing.

A bug counts as caught only if its code ran, the faults of its scenario fired, and what is reported is the harm that
this very bug does. The same scenarios must pass on the healthy engine.
"""

from __future__ import annotations

import re

import pytest

from tests.chaos.harness import Invalid, Job
from tests.planted import scenarios
from tests.planted.catalogue import BUGS
from tests.planted.scenarios import Scenario

CAUGHT_BY: dict[str, tuple[Scenario, str]] = {
    "commits_before_the_manifest": (scenarios.killed_undecided, r"^Kafka: \d+ doubled|exists, but its content is not"),
    "receipt_before_the_commit": (scenarios.killed_decided, r"^Kafka: \d+ lost.*files: \d+ lost"),
    "no_directory_sync": (scenarios.power_is_cut, r"FAILED .*test_a_manifest_is_absent_or_whole"),
    "no_term_check_after_publication": (scenarios.supervisor_sleeps, r"^Kafka: \d+ doubled"),
    "unfinished_epoch_is_skipped": (scenarios.killed_decided, r"^Kafka: \d+ lost.*files: \d+ lost"),
    "lost_committable_is_passed_over": (scenarios.transaction_expires, r"^Kafka: \d+ lost, such as [^;]*$"),
    "revokes_beside_a_committed_sibling": (scenarios.sibling_vanishes, r"^Kafka: \d+ doubled, such as [^;]*$"),
    "orphans_are_not_aborted": (scenarios.worker_killed, r"staged files left over.*open transactions left over"),
    "early_garbage_collection": (scenarios.transaction_expires, r"^the job ended with .*no earlier epoch is stored"),
    "files_go_with_the_first_manifest": (scenarios.killed_late, r"^the job ended with .*the file is missing"),
    "checksums_are_not_verified": (scenarios.state_rots, r"^Kafka: \d+ wrong.*files: \d+ wrong"),
    "position_one_too_far": (scenarios.killed_decided, r"^Kafka: \d+ lost.*files: \d+ lost"),
    "position_one_too_early": (scenarios.killed_decided, r"^Kafka: \d+ doubled.*files: \d+ doubled"),
    "positions_of_a_later_moment": (scenarios.killed_decided, r"^Kafka: \d+ lost.*files: \d+ lost"),
    "rules_are_not_aligned": (scenarios.rules_keep_coming, r"differs between workers"),
    "barriers_overtake_rules": (scenarios.rules_keep_coming, r"differs between workers"),
    "state_cache_is_not_flushed": (scenarios.killed_decided, r"^Kafka: \d+ wrong.*files: \d+ wrong"),
    "updates_of_one_batch_are_lost": (scenarios.unharmed, r"^Kafka: \d+ wrong.*files: \d+ wrong"),
    "barrier_misses_one_sink": (scenarios.killed_decided, r"^files: \d+ doubled"),
    "producer_is_reused": (scenarios.killed_decided, r"^Kafka: \d+ doubled, such as [^;]*$"),
    "failed_deliveries_are_ignored": (scenarios.topic_refuses, r"^Kafka: \d+ lost, such as [^;]*$"),
    "prepared_without_a_flush": (scenarios.unharmed, r"^Kafka: \d+ lost, such as [^;]*$"),
    "next_epoch_overtakes": (scenarios.unharmed, r"^Kafka: rows of an account are out of order$"),
}
"""For each bug: what makes it matter, and how the checks must put it."""


@pytest.mark.planted
@pytest.mark.parametrize("name", BUGS)
def test_the_checks_catch(name: str, job: Job) -> None:
    scenario, harm = CAUGHT_BY[name]
    job.environment["PLANTED_BUG"] = name

    with pytest.raises(AssertionError) as caught:
        scenario(job)

    said = str(caught.value)
    assert not isinstance(caught.value, Invalid), said
    assert (job.directory / "planted.log").exists(), "the planted code was never reached"
    # The console wraps lines anywhere.
    assert re.search(harm.replace(" ", r"\s+"), said, re.DOTALL), said


@pytest.mark.planted
@pytest.mark.parametrize("scenario", sorted({s for s, _ in CAUGHT_BY.values()}, key=str), ids=lambda s: s.__name__)
def test_the_healthy_engine_passes(scenario: Scenario, job: Job) -> None:
    scenario(job)

    assert not (job.directory / "planted.log").exists()
