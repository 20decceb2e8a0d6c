"""A broker with access rights: a job with just those of docs/permissions.md completes, and what is missing is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import pytest

from kafka_eos.abc.context import JobContext
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.connectors.kafka.client.cluster import Cluster
from kafka_eos.connectors.kafka.job_names import registration_id
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.sink.committer import KafkaCommitter
from kafka_eos.connectors.kafka.sink.producer_pool import WarmProducer
from kafka_eos.core.errors import ConfigError, RestartFromCheckpoint
from kafka_eos.core.ids import JobIdentity, Term
from tests.chaos.harness import Job, create_topic
from tests.chaos.running import check_all, make_job, refused, running
from tests.kafka_rights import Right, Rights, documented
from tests.secured import LIMITED, PASSWORD, Secured
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.xdist_group("secured")

GRANT = re.compile(
    rf"--allow-principal 'User:{LIMITED}' --operation (\w+) --([a-z-]+) (\S+?)"
    r"( --resource-pattern-type prefixed)?(?= ;|\s*$| \()",
    re.MULTILINE,
)


@pytest.fixture
def rights(secured: Secured) -> Iterator[Rights]:
    found = Rights(secured.open)
    yield found
    found.take_all()


@pytest.fixture
def job(secured: Secured, tmp_path: Path) -> Job:
    login = secured.config("SASL", sasl_mechanism="SCRAM-SHA-512", sasl_username=LIMITED, sasl_password=PASSWORD)
    secured.password(LIMITED, PASSWORD)
    return make_job(
        secured.open,
        tmp_path,
        300,
        "totals.py",
        KAFKA_EOS_BOOTSTRAP_SERVERS=secured.addresses["SASL"],
        KAFKA_EOS_KAFKA_CONFIG=json.dumps(login),
    )


def _cluster(secured: Secured) -> Cluster:
    login = {"sasl.mechanism": "PLAIN", "sasl.username": LIMITED, "sasl.password": PASSWORD}
    return Cluster(secured.addresses["SASL"], {**secured.config("SASL"), **login})


def _context(job: Job, secured: Secured) -> JobContext:
    where = _cluster(secured)
    settings = {"bootstrap_servers": where.bootstrap, "kafka_config": dict(where.config)}
    return JobContext(job.name, Term(1), settings, identity=JobIdentity("0123456789ab"))


def test_a_job_with_the_documented_rights_completes_and_without_the_last_says_which(job: Job, rights: Rights) -> None:
    markers = ("Read", "group", f"{job.name}.", True)
    rights.give(documented(job) - {markers})

    said = refused(job, 2)

    assert f"the user User:{LIMITED} lacks permission to Read on group '{job.name}." in said
    assert found_in(said) == {markers}
    rights.give([markers])
    job.run()
    check_all(job)


def test_each_right_that_is_missing_is_named(job: Job, rights: Rights, secured: Secured) -> None:
    """As a start looks at them, in its order; each error names one more right, and giving it is enough."""
    ctx, where = _context(job, secured), _cluster(secured)
    sink = KafkaSink(job.output, value=dict, bootstrap_servers=where.bootstrap, config=where.config)
    source = KafkaSource(job.input, value=dict, bootstrap_servers=where.bootstrap, config=where.config)
    committer = KafkaCommitter(where, ctx)
    output, read = ("Describe", "topic", job.output, False), ("Describe", "topic", job.input, False)

    lacks(lambda: sink.check(ctx), rights, output)
    lacks(lambda: sink.check(ctx), rights, ("Write", "topic", job.output, False), ("Read", "topic", job.output, False))
    lacks(lambda: source.discover(ctx, None), rights, read)
    lacks(lambda: source.discover(ctx, None), rights, ("Read", "topic", job.input, False))
    lacks(lambda: source.list_incarnations(ctx), rights, ("Read", "group", job.name, False))
    lacks(lambda: committer.register(ctx), rights, ("Write", "transactional-id", f"{job.name}.", True))

    sink.check(ctx)
    assert set(source.discover(ctx, None)) != set()
    committer.register(ctx)
    with KafkaRequests(where) as rpc:
        assert rpc.describe(registration_id(job.name, ctx.identity or JobIdentity("-"))) is not None


def test_a_topic_of_others_that_matches_a_pattern_stops_no_job_that_may_not_read_it(
    job: Job, rights: Rights, secured: Secured
) -> None:
    ours, theirs = job.input, f"{job.input}-theirs"
    ctx, where = _context(job, secured), _cluster(secured)
    pattern = re.compile(f"{re.escape(job.input)}.*")
    source = KafkaSource(pattern, value=dict, bootstrap_servers=where.bootstrap, config=where.config)
    rights.give([("Read", "topic", ours, False)])
    until_allowed(lambda: source.discover(ctx, None))
    known = source.discover(ctx, None)
    create_topic(secured.open, theirs, 1)
    rights.give([("Describe", "topic", theirs, False)])

    def told() -> bool:
        return any(
            f"the user may not read {theirs}, although the pattern " in each for each in source.check(ctx, known)
        )

    eventually(told, "the topic is seen")
    assert source.discover(ctx, known) == known == source.discover(ctx, None)
    assert source.get_end_positions(ctx).keys() == known.keys()

    rights.give([("Read", "topic", theirs, False)])
    eventually(lambda: source.discover(ctx, known).keys() == {*known, f"{theirs}/0"}, "its permission counts")
    rights.take(("Read", "topic", ours, False))
    rights.take(("Read", "topic", theirs, False))
    eventually(lambda: source.check(ctx, known) != [], "its permission counts no more")
    with pytest.raises(ConfigError, match="lacks permission to Read on topic"):
        source.discover(ctx, None)


def lacks(call: Callable[[], object], rights: Rights, *needed: Right) -> None:
    """The call fails for these rights; then they are given, and it fails no more."""
    with pytest.raises(ConfigError) as caught:
        call()
    assert f"the user User:{LIMITED} lacks permission to " in str(caught.value)
    assert found_in(str(caught.value)) == set(needed), str(caught.value)
    rights.give(needed)
    until_allowed(call, needed)


def until_allowed(call: Callable[[], object], given: Collection[Right] = ()) -> None:
    """The broker hears of new rights a moment later."""

    def heard() -> bool:
        try:
            call()
        except ConfigError as error:
            return not found_in(str(error)) & set(given or found_in(str(error)))
        except RestartFromCheckpoint:
            return False
        return True

    eventually(heard, "the broker goes by the new rights")


def found_in(said: str) -> set[Right]:
    """The rights that an error says how to give."""
    return {(operation, kind, name, bool(many)) for operation, kind, name, many in GRANT.findall(said)}


def test_a_right_to_write_that_is_taken_away_from_a_running_job_is_named(
    job: Job, rights: Rights, secured: Secured
) -> None:
    """librdkafka only says that it has thrown the records away."""
    rights.give(documented(job))
    where = _cluster(secured)
    config = where.build_client_config({"linger.ms": 0}, {"transaction.timeout.ms": 60_000})
    warm = WarmProducer(f"{job.name}.0123456789ab.1.0.0", 0, config)
    until_allowed(lambda: warm.init(PATIENCE))
    rights.take(("Write", "topic", job.output, False))
    warm.begin()

    def thrown_away() -> bool:
        warm.producer.produce(job.output, b"x")
        warm.producer.flush(PATIENCE)
        return bool(warm.failures)

    eventually(thrown_away, "the broker goes by the rights as they are")

    with pytest.raises(ConfigError, match=f"lacks permission to Write on .*topic '{job.output}'"):
        warm.expect_unrefused([job.output])


@pytest.mark.campaign
def test_who_follows_the_errors_ends_with_the_documented_rights(job: Job, rights: Rights) -> None:
    """From no right at all, giving what each start says, until the job completes."""
    given: set[Right] = set()

    def completes() -> bool:
        with running(job, "", "--until-caught-up") as started:
            if (code := started.ended()) == 0:
                return True
            assert code == 2, started.log
            missing = found_in(started.log)
        assert missing, started.log
        rights.give(missing - given)
        given.update(missing)
        return False

    eventually(completes, "the job completes")

    check_all(job)
    assert {right for right in given if right[0] != "Describe"} == documented(job)
