"""What an audit of topics reads and judges: offsets, times, groups, earlier audits; what has expired or is open."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from kafka_eos.audit import Check, Conclusion
from kafka_eos.audit.checks.verdict import Evidence, Violation
from kafka_eos.audit.cluster.cluster_admin import ClusterAdmin, Range, Ranges, settle, unsettled
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
from kafka_eos.audit.topics.offset_window import identity, left_out, reading_ends, window
from kafka_eos.audit.topics.topic_audit import _compacted_away
from kafka_eos.core.errors import ConfigError
from tests.audit.job import FED_AT, Out
from tests.audit.topic_pair import EARLIER, ORDERS, Pair, found
from tests.marks import campaign
from tests.waiting import PATIENCE, eventually

pytestmark = pytest.mark.timeout(300)


def test_an_audit_resumes_where_an_earlier_one_ended(pair: Pair, spark: Any, tmp_path: Path) -> None:
    pair.job.write(pair.output, pair.outs)
    audit_topics(pair.question(id="$.id"), spark=spark, report_dir=tmp_path)
    earlier = json.loads((tmp_path / "report.json").read_text())
    more = range(ORDERS, ORDERS + 8)
    pair.feed(more)
    pair.job.write(pair.output, [*pair.made(more)[1:], pair.outs[0]])

    verdict = audit_topics(pair.question(id="$.id", resume=earlier), spark=spark)

    assert {Check.LOST: 1, Check.UNEXPECTED: 1} == found(verdict), verdict.findings
    assert (ORDERS + 8, ORDERS + 8) == (verdict.facts.inputs, verdict.facts.outputs)


def test_a_window_of_offsets_is_all_that_is_judged(pair: Pair, spark: Any) -> None:
    pair.job.write(pair.output, pair.outs[1:])
    start = {pair.input: {0: 4, 1: 4}, pair.output: {0: 3, 1: 4}}

    verdict = audit_topics(pair.question(id="$.id", start=start), spark=spark)

    assert (Conclusion.PASS, ORDERS - 8) == (verdict.conclusion, verdict.facts.inputs), verdict.headline


def test_a_window_of_times_judges_what_lies_in_it_and_reads_more(pair: Pair, spark: Any) -> None:
    """The outputs are an hour later than their inputs: counterparts are found in the slack."""
    later = [replace(o, timestamp=FED_AT + 3_600_000) for o in pair.outs]
    pair.job.write(pair.output, [*later[:3], *later[4:]])
    fed = datetime.fromtimestamp(FED_AT / 1000, UTC)
    inside = {"start": fed - timedelta(minutes=1), "end": fed + timedelta(minutes=1)}

    verdict = audit_topics(pair.question(id="$.id", slack=7200.0, **inside), spark=spark)
    outside = audit_topics(pair.question(id="$.id", slack=7200.0, start=fed + timedelta(minutes=1)), spark=spark)

    assert {Check.LOST: 1} == found(verdict), verdict.findings
    assert ORDERS == verdict.facts.inputs
    assert {} == found(outside), outside.findings


def test_a_record_of_the_future_does_not_end_a_window_of_times(pair: Pair, spark: Any) -> None:
    """The first record that is not older than the end is the first one: nothing of the partition would be judged."""
    future = replace(pair.outs[0], timestamp=FED_AT + 3_000_000)
    pair.job.write(pair.output, [future, *(o for o in pair.outs[1:] if o is not pair.outs[4])])
    end = datetime.fromtimestamp(FED_AT / 1000, UTC) + timedelta(minutes=30)

    verdict = audit_topics(pair.question(id="$.id", end=end), spark=spark)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion, verdict.headline
    assert f"{pair.output}/0 has {ORDERS // 2 - 2} records older than --to after a newer record" in verdict.headline


def test_a_record_of_the_future_does_not_begin_a_window_of_times(
    pair: Pair, topic: Callable[..., str], spark: Any
) -> None:
    """The inputs behind it are older than the start, and outputs as old as they are not read."""
    source, fed = topic(), datetime.fromtimestamp(FED_AT / 1000, UTC)
    orders = [Out("ann", b'{"id":%d}' % n, None) for n in range(10)]
    old = [replace(o, timestamp=FED_AT - 36_000_000) for o in orders[1:6]]
    pair.job.write(source, [replace(orders[0], timestamp=FED_AT + 3_600_000), *old, *orders[6:]])
    pair.job.write(pair.output, [*old, orders[0], *orders[6:9]])

    verdict = audit_topics(
        replace(pair.question(id="$.id", start=fed - timedelta(minutes=1)), inputs=(source,)), spark=spark
    )

    assert ({Check.LOST: 1}, 5) == (found(verdict), verdict.facts.inputs), verdict.headline
    assert {"id": 9} == json.loads(verdict.findings[0].examples[0].detail.partition("; id 9: ")[2])
    assert "not judged: 5 records older than --from" in str(verdict.facts.left_out)


@pytest.mark.campaign
def test_windows_of_times_side_by_side_judge_each_input_once(pair: Pair, topic: Callable[..., str], spark: Any) -> None:
    """Times of records neither rise nor fall: those at an edge are on both sides of it."""
    source, dice, minutes = topic(partitions=2), random.Random(5), range(30)
    began = FED_AT - 3_600_000
    times = [began + 60_000 * minute + dice.randrange(-90_000, 90_000) for minute in minutes]
    orders = [Out("ann", b'{"id":%d}' % n, None, n % 2, timestamp=times[n]) for n in minutes]
    pair.job.write(source, orders)
    pair.job.write(pair.output, [o for n, o in enumerate(orders) if n != 17])
    edges = [None, *(datetime.fromtimestamp(began / 1000, UTC) + timedelta(minutes=n) for n in (10, 20)), None]
    question = replace(pair.question(id="$.id"), inputs=(source,))

    verdicts = [audit_topics(replace(question, start=a, end=b), spark=spark) for a, b in pairwise(edges)]

    assert len(minutes) == sum(verdict.facts.inputs or 0 for verdict in verdicts)
    assert [{}, {Check.LOST: 1}, {}] == [found(verdict) for verdict in verdicts]


@pytest.mark.campaign
@pytest.mark.parametrize("role", ["input", "output"])
def test_what_expires_during_an_audit_of_topics_is_no_finding(
    pair: Pair, admin: AdminClient, spark: Any, role: str
) -> None:
    pair.job.write(pair.output, pair.outs)
    at = TopicPartition(getattr(pair, role), 0, 2)

    def progress(text: str) -> None:
        if text.startswith("reading"):
            admin.delete_records([at])[at].result(PATIENCE)

    verdict = audit_topics(pair.question(id="$.id"), spark=spark, progress=progress)

    assert (Conclusion.INCONCLUSIVE, ()) == (verdict.conclusion, verdict.findings), verdict.headline
    assert "records were deleted while they were read" in verdict.headline


def test_a_topic_of_the_same_name_is_not_resumed(
    pair: Pair, topic: Callable[..., str], admin: AdminClient, spark: Any
) -> None:
    with closing(ClusterAdmin(spark, {"bootstrap.servers": pair.job.bootstrap})) as cluster:
        question = pair.question(id="$.id")
        earlier = {**EARLIER, "question": question.asked, "resume": {"identity": identity(question, cluster)}}
        resumed = replace(question, resume=earlier)
        same = identity(resumed, cluster)
        admin.delete_topics([pair.output])[pair.output].result(PATIENCE)
        eventually(lambda: pair.output not in admin.list_topics(timeout=PATIENCE).topics, "the topic is deleted")
        admin.create_topics([NewTopic(pair.output, 2)])[pair.output].result(PATIENCE)

        with pytest.raises(ConfigError, match=f"{pair.output} was deleted and recreated"):
            identity(resumed, cluster)

    assert earlier["resume"]["identity"] == same


@pytest.mark.parametrize(
    ("ends", "busy"), [({}, ["t"]), ({"t": {0: 9}}, []), ({"t": {0: 10}}, ["t"]), ({"t": {1: 5}}, ["t"])]
)
def test_a_topic_is_busy_as_far_as_it_is_read(ends: dict[str, dict[int, int]], busy: list[str]) -> None:
    assert busy == unsettled({"t": {0: Range(0, 9, 12), 1: Range(0, 7, 7)}, "i": {0: Range(0, 5, 5)}}, ends)


def test_a_topic_that_is_written_without_transactions_settles(pair: Pair, spark: Any) -> None:
    producer, stopped = Producer({"bootstrap.servers": pair.job.bootstrap, "linger.ms": 0}), threading.Event()

    def write() -> None:
        while not stopped.is_set():
            producer.produce(pair.output, b"{}", partition=0)
            producer.flush(PATIENCE)

    with (
        closing(ClusterAdmin(spark, {"bootstrap.servers": pair.job.bootstrap})) as cluster,
        ThreadPoolExecutor(1) as pool,
    ):
        writing = pool.submit(write)
        try:
            found = [settle(cluster, [pair.output], 0, dict) for _ in range(10)]
        finally:
            stopped.set()
        writing.result(PATIENCE)

    assert [[]] * 10 == [busy for _, busy in found]
    ends = [ranges[pair.output][0].end for ranges, _ in found]
    assert ends == sorted(ends) and ends[0] < ends[-1], "it was busy"


@pytest.mark.campaign
def test_what_lies_below_an_open_transaction_can_be_judged(pair: Pair, spark: Any) -> None:
    """By offsets, or up to a time; not up to the ends, nor into the transaction."""
    fed = datetime.fromtimestamp(FED_AT / 1000, UTC)
    pair.job.write(pair.output, [replace(o, timestamp=FED_AT - 3_600_000) for o in pair.outs])
    settings = {"transactional.id": f"{pair.job.name}.busy", "transaction.timeout.ms": 300_000}
    busy = Producer({"bootstrap.servers": pair.job.bootstrap, **settings})
    busy.init_transactions(30)
    pair.job.begin(busy, {pair.output: pair.outs[:1]})
    below = {pair.output: dict.fromkeys((0, 1), ORDERS // 2 + 1)}
    quiet = [{"end": below}, {"end": fed - timedelta(minutes=30)}]
    never = [{}, {"end": {pair.output: {0: ORDERS // 2 + 2}}}, {"end": fed + timedelta(hours=1)}]

    with closing(ClusterAdmin(spark, {"bootstrap.servers": pair.job.bootstrap})) as cluster:

        def still_open(seconds: float, asked: dict[str, Any]) -> list[str]:
            question = pair.question(id="$.id", **asked)
            return settle(cluster, question.topics, seconds, partial(reading_ends, question, cluster))[1]

        open_below, open_above = [still_open(30, asked) for asked in quiet], [still_open(0, asked) for asked in never]
    verdict = audit_topics(pair.question(id="$.id", end=below), spark=spark)
    busy.abort_transaction(30)

    assert [[], []] == open_below
    assert all(f"{pair.job.name}.busy" in line for (line,) in open_above)
    assert (Conclusion.PASS, ORDERS) == (verdict.conclusion, verdict.facts.outputs), verdict.headline


@pytest.mark.campaign
def test_a_time_tells_what_expired_only_where_something_older_is_left(
    pair: Pair, admin: AdminClient, spark: Any
) -> None:
    """An output topic that keeps less than its input: what is older than that is not lost."""
    fed = datetime.fromtimestamp(FED_AT / 1000, UTC)
    old = [replace(o, timestamp=FED_AT - 7_200_000) for o in pair.outs]
    pair.job.write(pair.output, old)
    pair.feed(range(ORDERS, ORDERS + 8))
    pair.job.write(pair.output, [replace(o, timestamp=FED_AT) for o in pair.made(range(ORDERS, ORDERS + 8))])
    for future in admin.delete_records([TopicPartition(pair.output, p, 2) for p in (0, 1)]).values():
        future.result(PATIENCE)

    whole = audit_topics(pair.question(id="$.id"), spark=spark)
    since = audit_topics(pair.question(id="$.id", start=fed - timedelta(hours=9)), spark=spark)
    later = audit_topics(pair.question(id="$.id", start=fed - timedelta(minutes=1), slack=1.0), spark=spark)

    assert (Conclusion.INCONCLUSIVE, Conclusion.INCONCLUSIVE) == (whole.conclusion, since.conclusion), (
        whole.headline,
        since.headline,
    )
    assert "have expired" in whole.headline and "have expired" in since.headline
    assert {Check.LOST: ORDERS} == found(later), later.headline  # nothing that they need has expired


def committed(pair: Pair) -> str:
    """A group that has read all inputs but the last four of each partition."""
    group = f"group-{uuid4().hex[:8]}"
    done = [TopicPartition(pair.input, p, ORDERS // 2 - 4) for p in (0, 1)]
    Consumer({"bootstrap.servers": pair.job.bootstrap, "group.id": group}).commit(offsets=done, asynchronous=False)
    return group


def test_a_group_tells_how_far_the_input_was_processed(pair: Pair, spark: Any) -> None:
    """Outputs of inputs behind it are there already: they are neither unexpected nor are others lost."""
    pair.job.write(pair.output, pair.outs[: ORDERS - 2])
    group = committed(pair)

    verdict = audit_topics(pair.question(id="$.id", group=group), spark=spark)

    assert (Conclusion.PASS, ORDERS - 8) == (verdict.conclusion, verdict.facts.inputs), verdict.findings


@pytest.mark.campaign
def test_inputs_behind_the_group_with_an_id_from_before_it_leave_a_loss_untold(pair: Pair, spark: Any) -> None:
    pair.job.write(pair.output, pair.outs[: ORDERS - 2])
    group = committed(pair)
    pair.feed(range(2))

    verdict = audit_topics(pair.question(id="$.id", group=group), spark=spark)

    assert (Conclusion.INCONCLUSIVE, {}) == (verdict.conclusion, found(verdict)), verdict.headline
    assert "2 ids also occur outside of the judged range, and have fewer outputs" in verdict.headline
    assert "(id 0: 1 of 2)" in verdict.headline


ACCOUNTS = {
    "all": ("xxxxx", "xxxxx", Conclusion.PASS),
    "one lost": ("xxxxx", "xxxx", Conclusion.INCONCLUSIVE),
    "more lost than lie outside": ("xxx", "x", Conclusion.FAIL),
    "one more, in or of the slack": ("xxxxxx", "xxxxx", Conclusion.INCONCLUSIVE),
    "more than all inputs": ("xxxxx", "xxxxxxxxxxx", Conclusion.FAIL),
}
"""Of an account with five inputs inside and five outside: its outputs outside and inside."""


@pytest.mark.parametrize("named", [campaign(name, named=name) for name in ACCOUNTS])
def test_ids_of_many_records_are_judged_in_a_window_of_times_as_far_as_they_tell(
    pair: Pair, topic: Callable[..., str], spark: Any, named: str
) -> None:
    outside, inside, conclusion = ACCOUNTS[named]
    source, fed = topic(), datetime.fromtimestamp(FED_AT / 1000, UTC)
    before = FED_AT - 300_000
    order = Out("ann", b'{"account":1}', None)
    pair.job.write(source, [*[replace(order, timestamp=before)] * 5, *[replace(order, timestamp=FED_AT)] * 5])
    times = [*[before] * len(outside), *[FED_AT] * len(inside)]
    pair.job.write(pair.output, [replace(order, timestamp=time) for time in times])
    question = replace(pair.question(id="$.account", start=fed - timedelta(seconds=10)), inputs=(source,))

    verdict = audit_topics(question, spark=spark)

    assert conclusion is verdict.conclusion, verdict.headline
    assert (conclusion is Conclusion.FAIL) == bool(verdict.findings)


def test_a_topic_that_was_made_anew_is_not_resumed() -> None:
    earlier = {**EARLIER, "resume": {"ends": {"t": {"0": 100}, "i": {"0": 100}}, "files": {}}}
    question = TopicAuditOptions("host:1", ("i",), ("t",), "$.x", resume=earlier)
    ranges = {"i": {0: Range(0, 120, 120)}, "t": {0: Range(0, 10, 10)}}

    with pytest.raises(ConfigError, match="t/0 ends at offset 10, before 100"):
        window(question, None, ranges)


def asked(**more: Any) -> TopicAuditOptions:
    return TopicAuditOptions("host:1", ("i",), ("t",), "$.x", **more)


LOST = {Check.LOST: Evidence(9, 2, (Violation("i", 0, 3, "x"),))}
COPIED = {Check.DUPLICATE: Evidence(9, 2, (Violation("t", 0, 3, "x"),))}


@pytest.mark.parametrize(
    ("compacted", "found", "named", "doubtful"),
    [
        (["t"], LOST, "$.x", True),
        (["i"], LOST, "$.x", False),
        (["i"], COPIED, "$.x", True),
        (["i"], COPIED, "provenance", False),
        (["t"], COPIED, "$.x", False),
        ([], LOST, "$.x", False),
    ],
)
def test_what_compaction_may_have_done_is_no_finding(
    compacted: list[str], found: dict[Check, Evidence], named: str, doubtful: bool
) -> None:
    nothing = dict.fromkeys(Check, Evidence(9))
    told = _compacted_away(replace(asked(), id=named), compacted, {**nothing, **found})

    assert ([*found] if doubtful else []) == [*told]
    assert all("the first: " in why.reason for why in told.values())


@pytest.mark.campaign
def test_compacted_topics_are_invalid_where_they_lack_something(
    pair: Pair, topic: Callable[..., str], spark: Any
) -> None:
    compacted = topic(partitions=2, config={"cleanup.policy": "compact"})
    pair.job.write(compacted, pair.outs[:-1])
    question = replace(pair.question(id="$.id"), outputs=(compacted,))
    short = audit_topics(question, spark=spark)
    pair.job.write(compacted, pair.outs[-1:])
    whole = audit_topics(question, spark=spark)

    assert (Conclusion.INCONCLUSIVE, Conclusion.PASS) == (short.conclusion, whole.conclusion), (
        short.headline,
        whole.headline,
    )
    assert "lost not checked: compaction of" in short.headline


# ---------------------------------------------------------------- windows

FULL = {"i": {0: Range(0, 200, 200), 1: Range(0, 50, 50)}, "t": {0: Range(0, 300, 300)}}
SINCE_100 = {**FULL, "i": {0: Range(100, 200, 200), 1: Range(0, 50, 50)}}


@pytest.mark.parametrize(
    ("ranges", "start"),
    [
        (SINCE_100, None),
        ({**FULL, "t": {0: Range(100, 300, 300)}}, None),
        ({**FULL, "t": {0: Range(300, 300, 300)}}, None),
        (SINCE_100, {"i": {1: 10}, "t": {0: 100}}),
    ],
    ids=["of the input", "of the output", "all of the output", "of a partition that --from does not name"],
)
def test_expired_records_are_no_losses_but_no_ground_to_judge_on(
    ranges: Ranges, start: dict[str, dict[int, int]] | None
) -> None:
    with pytest.raises(ConfigError, match=r"have expired \([it]/0 begins at offset \d00\), .*--from"):
        window(asked(start=start), None, ranges)


def test_offsets_to_start_from_judge_what_has_not_expired() -> None:
    found = window(asked(start={"i": {0: 100}, "t": {0: 150}}), None, SINCE_100)

    assert ({0: (100, 200), 1: (0, 50)}, {0: (150, 300)}) == (found.judged["i"], found.judged["t"])


def test_what_expired_since_an_earlier_audit_ends_it() -> None:
    earlier = {**EARLIER, "resume": {"ends": {"t": {"0": 100}, "i": {"0": 90}}, "files": {}}}
    with pytest.raises(ConfigError, match=r"i/0 begins at offset 100.*without --resume"):
        window(asked(resume=earlier), None, SINCE_100)


def test_what_is_not_judged_is_in_the_headline() -> None:
    """Of an earlier audit, which judged what came before, only the rest is told."""
    some = asked(start={"i": {0: 150, 1: 20}, "t": {0: 200}}, end={"i": {0: 180}})
    earlier = {**EARLIER, "resume": {"ends": {"t": {"0": 100}, "i": {"0": 90}}, "files": {}}}

    assert [
        "not judged: 170 before the start and 20 after the end of the inputs (offsets)",
        "not judged: 200 before the start of the outputs (offsets)",
    ] == left_out(some, FULL, window(some, None, FULL))
    assert [] == left_out(asked(), FULL, window(asked(), None, FULL))
    assert [] == left_out(asked(resume=earlier), FULL, window(asked(resume=earlier), None, FULL))


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"start": {"typo": {0: 9}}}, "--from names 'typo', which is not audited; audited topics: i, t"),
        ({"end": {"t": {1: 9}}}, "--to names t/1; the last partition is t/0"),
        ({"start": {"i": {0: 99}}}, "--from names offset 99 of i/0, which has offsets 100 to 200"),
        ({"end": {"i": {0: 201}}}, "--to names offset 201 of i/0, which has offsets 100 to 200"),
        ({"start": {"i": {0: 150}}, "end": {"i": {0: 149}}}, r"i/0: --from \(150\) is after --to \(149\)"),
    ],
)
def test_offsets_that_are_not_there_are_refused(given: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        window(asked(**given), None, SINCE_100)
