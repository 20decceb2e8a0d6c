"""The auditor audited: each corruption of the catalogue is found and named, and nothing else is.

One pipeline writes the same totals to a sink for each corruption; its outputs are spoiled one sink at a time, and one
audit judges them all.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_eos.audit import Check, Conclusion, Verdict
from kafka_eos.audit.tables.topic_tables import PROVENANCE
from kafka_eos.core.ids import EpochId, SplitId
from kafka_eos.core.provenance import HEADER
from kafka_eos.runtime.operators.rejections import hash_operator
from tests.audit.corruptions import CORRUPTIONS, Corruption, Outs, nth, without
from tests.audit.job import Job, Out, epoch, out, placed, refused_at
from tests.audit.output_records import OWN
from tests.marks import campaign
from tests.spark_sessions import SparkSessions
from tests.waiting import PATIENCE

pytestmark = pytest.mark.timeout(600)

PIPELINE = """
from pydantic import BaseModel
from kafka_eos import Pipeline
from kafka_eos.connectors.files import FileSink
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter

class Order(BaseModel):
    user: str
    amount: int

class Total(BaseModel):
    user: str
    total: int

def picky(total):
    if total.total == {refused}:
        raise ValueError("not this one")
    return total.user

def user(total):
    return [("user", total.user.encode())]

pipeline = Pipeline("{name}")
totals = (
    pipeline.source(KafkaSource("{input}", value=Order), name="orders", on_error=dead_letter("{letters}"))
    .filter(lambda order: order.amount > 0)
    .key_by(lambda order: order.user)
    .fold(name="total", init=lambda: 0, step=lambda total, order: total + order.amount,
          emit=lambda user, total: Total(user=user, total=total))
)
for sink, topic in {topics}.items():
    config = {{"partitioner": "random" if sink == "keys-anywhere" else "consistent_random"}}
    totals.sink(KafkaSink(topic, value=Total, key=lambda total: total.user, headers=user, config=config,
                          provenance="{provenance}"), name=sink)
for sink, topic in {plain}.items():
    totals.sink(KafkaSink(topic, value=Total, key=lambda total: total.user, headers=user, provenance=None), name=sink)
for sink, directory in {files}.items():
    totals.sink(FileSink(directory, value=Total, envelope=not sink.startswith("plain")), name=sink)
totals.sink(KafkaSink("{picky}", value=Total, key=picky), name="picky")
"""
TWO_PARTITIONS = {
    "doubled-in-another-partition", "a-record-in-the-wrong-partition", "the-end-of-a-partition-cut-off", "orders",
    "all-of-a-key-in-the-wrong-partition", "many-records-of-somebody-else", "keys-anywhere",
    "before-partitions-were-added",
}  # fmt: skip
"""The other topics have one: each partition costs a task in every scan."""
USERS = ("ann", "bob", "cid", "dee")
REFUSED = 15  # ann's total after her third order

FILES: dict[str, dict[Check, int]] = {
    "lines-clean": {},
    "lines-doubled": {Check.DUPLICATE: 1, Check.WRONG_COUNT: 1},
    "lines-lost": {Check.LOST: 1, Check.UPDATE_GAP: 1, Check.WRONG_COUNT: 1},
    "lines-torn": {Check.MALFORMED: 1, Check.LOST: 1, Check.WRONG_TOTAL: 1, Check.WRONG_COUNT: 1},
    "lines-joined": {Check.MALFORMED: 1, Check.LOST: 2, Check.UPDATE_GAP: 2, Check.WRONG_COUNT: 1},
    "lines-altered": {Check.WRONG_VALUE: 1},
    "lines-swapped": {Check.REORDERED: 1},
    "lines-moved": {Check.MISPLACED: 1},
    "lines-exchanged": {Check.MISPLACED: 2, Check.REORDERED: 1},
    "a-file-lost": {Check.LOST: 8, Check.WRONG_TOTAL: 4, Check.WRONG_COUNT: 1},
    "plain-lines-clean": {},
    "plain-lines-lost": {Check.LOST: 1},
    "plain-lines-altered": {Check.LOST: 1, Check.UNEXPECTED: 1},
}
PLAIN: dict[str, dict[Check, int]] = {
    "plain-clean": {},
    "plain-lost": {Check.LOST: 1},
    "plain-doubled": {Check.DUPLICATE: 1},
    "plain-cancelling": {Check.LOST: 1, Check.DUPLICATE: 1},
    "plain-header-altered": {Check.LOST: 1, Check.UNEXPECTED: 1},
    "plain-header-of-a-letter": {Check.LOST: 1, Check.UNEXPECTED: 1},
    "plain-timestamp-altered": {Check.LOST: 1, Check.UNEXPECTED: 1},
    "plain-of-the-time-with-provenance": {},
}
LETTERS = {Check.LOST: 1, Check.DUPLICATE: 1, Check.WRONG_VALUE: 1}
EVERY = (*(c.name for c in CORRUPTIONS), *PLAIN, *FILES)
SOME = (
    "other-keys-in-between",
    "doubled-in-another-partition",
    "doubled-by-another-epoch",
    "an-output-of-a-filtered-record",
    "one-in-the-middle-lost",
    "all-of-a-key-lost",
    "a-loss-and-a-duplicate-that-cancel-in-counts",
    "two-of-a-key-swapped",
    "a-wrong-total",
    "two-values-swapped-that-cancel-in-sums",
    "a-tombstone-in-place-of-a-value",
    "a-key-altered",
    "a-header-altered",
    "a-timestamp-altered",
    "an-update-number-skipped",
    "a-record-in-the-wrong-partition",
    "keys-anywhere",
    "before-partitions-were-added",
    "the-provenance-garbled",
    "many-records-of-somebody-else",
    "an-output-of-an-undecided-epoch",
    "the-outputs-of-two-epochs-of-a-key-exchanged",
    "a-committed-output-hidden",
    "what-a-task-that-lost-wrote-in-a-committed-epoch",
    "lines-doubled",
    "lines-torn",
    "lines-exchanged",
    "a-file-lost",
    "plain-lines-altered",
    "plain-cancelling",
    "plain-header-altered",
    "plain-of-the-time-with-provenance",
)
"""Of each check, and of each part of a record, one: what an audit takes grows with its sinks."""


Names = Collection[str]


class World:
    """Topics and files with everything that is wrong with them, and what an audit says of it."""

    def __init__(self, bootstrap: str, directory: Path, topics: dict[str, str], provenance: str, some: Names) -> None:
        self._beside = provenance == "ledger"
        self.directory, self.topics = directory, topics
        self.corruptions = [c for c in CORRUPTIONS if c.name in some]
        self.plain = {sink: finds for sink, finds in PLAIN.items() if sink in some}
        self.lines = {sink: finds for sink, finds in FILES.items() if sink in some}
        self.input, self.letters = self.topics.pop("orders"), self.topics.pop("letters")
        self.files = {sink: str(directory / sink) for sink in self.lines}
        plain = {sink: self.topics[sink] for sink in self.plain}
        marked = {c.name: self.topics[c.name] for c in self.corruptions}
        self.job = Job(bootstrap, directory, directory / "app.py", f"corrupted-{uuid4().hex[:8]}")
        self.job.app.write_text(
            PIPELINE.format(name=self.job.name, input=self.input, letters=self.letters, refused=REFUSED, topics=marked,
                            plain=plain, files=self.files, picky=self.topics["picky"], provenance=provenance)
        )  # fmt: skip
        self.outs = self._feed()
        self._write_topics()
        self._write_letters()
        for sink in self.lines:
            self._write_files(sink)
        splits = {SplitId(f"{self.input}/{p}"): end for p, end in enumerate(self.ends)}
        half = {epoch(1, 1): {"orders": dict.fromkeys(splits, 4)}}
        epochs = epoch(1, 0), epoch(1, 1), epoch(2, 2)
        self.job.commits(*epochs, positions={"orders": splits}, counts=self._counts(), earlier=half)
        if epoch(1, 2) in self.job.kept:
            self.job.decide(epoch(1, 2), {"orders": splits})

    def _feed(self) -> Outs:
        """Write the input; the right outputs."""
        inputs: list[tuple[int, str | None, bytes]] = []
        outs, sums, updates = [], dict.fromkeys(USERS, 0), dict.fromkeys(USERS, 0)
        for i in range(20):
            user, partition, amount = USERS[i % 4], i % 2, 0 if i >= 16 else i + 1
            inputs.append((partition, user, json.dumps({"user": user, "amount": amount}).encode()))
            if amount:
                sums[user] += amount
                updates[user] += 1
                written_by = (1, 1) if i < 8 else (2, 2)
                made = out((partition, i // 2), user, _total(user, sums[user]), update=updates[user],
                           topic=self.input, epoch=written_by, target=placed(user))  # fmt: skip
                outs.append(replace(made, headers=(("user", user.encode()),)))
        bad: list[tuple[int, str | None, bytes]] = [(0, None, b"bad %d" % i) for i in range(3)]
        self.job.feed(self.input, [*inputs, *bad])
        self.ends = (13, 10)
        return outs

    def _counts(self) -> dict[EpochId, dict[str, int]]:
        """By epoch and sink, how many right outputs there are."""
        made = dict.fromkeys((*(c.name for c in self.corruptions), *self.plain, *self.lines), 8)
        first = {**made, "picky": 8, "orders-dead-letters": 0}
        return {epoch(1, 1): first, epoch(2, 2): {**made, "picky": 7, "orders-dead-letters": 4}}

    def _write_topics(self) -> None:
        visible = {self.topics[c.name]: _placed(c.name, c.spoil(self.outs)) for c in self.corruptions}
        hidden = {self.topics[c.name]: _placed(c.name, c.hide(self.outs)) for c in self.corruptions}
        if self._beside:
            sinks = {self.topics[c.name]: c.name for c in self.corruptions}
            self.job.write_beside(visible, sinks, commit=True)
            self.job.write_beside(hidden, sinks, commit=False)
            visible, hidden = {}, {}
        visible |= {self.topics[sink]: _plain(sink, self.outs) for sink in self.plain}
        visible[self.topics["picky"]] = [
            replace(o, headers=(), partition=0) for o in self.outs if o.value != _total("ann", REFUSED)
        ]  # fmt: skip
        self.job.write_all(visible)
        self.job.write_all(hidden, commit=False)

    def _write_letters(self) -> None:
        """One is lost, one is doubled, one has another header; the one that a sink refused is right."""
        refused = self.outs[nth(self.outs, "ann", 3)]
        where = f"{OWN}.2.2/orders/{self.input}/0/"
        first = Out(None, b"bad 1", f"{where}11/0.0-{hash_operator('orders')}-0", 0, refused_at(self.input, 11))
        altered = Out(None, b"bad 2", f"{where}12/0.0-{hash_operator('orders')}-0", 0, refused_at(self.input, 21))
        raw = json.dumps({"user": "ann", "amount": 9}).encode()
        offset = int((refused.text or "").split("/")[4])
        picked = Out("ann", raw, f"{where}{offset}/0.0-{hash_operator('picky')}-0", 0, refused_at(self.input, offset))
        self.job.write(self.letters, [first, first, altered, picked])

    def _write_files(self, sink: str) -> None:
        directory = Path(self.files[sink])
        directory.mkdir()
        form = b"%.0b%b\n" if sink.startswith("plain") else b'{"provenance":"%b","value":%b}\n'
        lines = [form % ((o.said(self.job.name) or "").encode(), o.value or b"") for o in self.outs]
        for number, data in enumerate(_spoilt(sink, lines), 1):
            if data:
                (directory / f"part-{number:012d}-0000-{self.job.name}.{sink}.jsonl").write_bytes(data)


def _total(user: str, total: int) -> bytes:
    return json.dumps({"user": user, "total": total}, separators=(",", ":")).encode()


def _plain(sink: str, outs: Outs) -> Outs:
    spoilt = outs
    if sink in ("plain-lost", "plain-cancelling"):
        spoilt = without(spoilt, nth(outs, "cid", 2))
    if sink in ("plain-doubled", "plain-cancelling"):
        spoilt = [*spoilt, outs[nth(outs, "bob", 2)]]
    if sink == "plain-header-altered":
        spoilt = [*without(outs, 5), replace(outs[5], headers=(("user", b"eve"),))]
    if sink == "plain-header-of-a-letter":
        spoilt = [*without(outs, 5), replace(outs[5], headers=(*outs[5].headers, ("dead_letter.message", b"")))]
    if sink == "plain-timestamp-altered":
        spoilt = [*without(outs, 5), replace(outs[5], timestamp=outs[5].timestamp + 1)]
    if sink == "plain-of-the-time-with-provenance":
        return [replace(o, partition=0) for o in spoilt]
    return [replace(o, text=None, partition=0) for o in spoilt]


def _placed(sink: str, outs: Outs) -> Outs:
    return outs if sink in TWO_PARTITIONS else [replace(o, partition=0) for o in outs]


def _spoilt(sink: str, every: list[bytes]) -> tuple[bytes, bytes]:
    """What is left of two files, each with two lines a user, ann, bob, cid, dee, ann …"""
    before, lines = every[:8], every[8:]
    if sink == "lines-moved":
        before, lines = every[:7], every[7:]
    if sink == "lines-exchanged":
        before[7], lines[3] = lines[3], before[7]
    spoilt = {
        "doubled": [*lines, lines[3]],
        "lost": lines[1:],
        "torn": [*lines[:-1], lines[-1][:-9]],
        "joined": [lines[0][:-1] + lines[1], *lines[2:]],
        "altered": [lines[0].replace(b'"total":15', b'"total":51').replace(b'"total":27', b'"total":72'), *lines[1:]],
        "swapped": [lines[4], *lines[1:4], lines[0], *lines[5:]],
    }
    left = [] if sink == "a-file-lost" else spoilt.get(sink.rpartition("-")[2], lines)
    return b"".join(before), b"".join(left)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("header", SOME), id="some"),
        campaign(("header", EVERY), named="every"),
        campaign(("ledger", EVERY), named="ledger"),
    ],
)
def world(
    bootstrap: str, admin: AdminClient, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[World]:
    """With the provenance of topics in headers, and beside the data."""
    provenance, some = request.param
    roles = [*(name for name in some if name not in FILES), "orders", "letters", "picky"]
    topics = {role: f"corrupted-{uuid4().hex[:12]}" for role in roles}
    new = [NewTopic(name, 1 + (role in TWO_PARTITIONS), replication_factor=1) for role, name in topics.items()]
    for future in admin.create_topics(new).values():
        future.result(PATIENCE)
    yield World(bootstrap, tmp_path_factory.mktemp("corrupted"), dict(topics), provenance, some)
    for future in admin.delete_topics([*topics.values()]).values():
        future.result(PATIENCE)


@pytest.fixture(scope="module")
def verdict(world: World, spark_sessions: SparkSessions) -> Verdict:
    return world.job.audit(spark_sessions.live())


def found(verdict: Verdict, sink: str) -> dict[Check, int]:
    return {f.check: f.by_sink[sink] for f in verdict.findings if sink in f.by_sink}


def miscounted(world: World, corrupted: Corruption) -> dict[Check, int]:
    """Of both epochs those of which not eight outputs are visible."""
    valid = re.compile(PROVENANCE.replace(r"\z", r"\Z"))
    shown = Counter(text.split("/")[0] for text in map(_provenance, corrupted.spoil(world.outs)) if valid.match(text))
    wrong = sum(shown[attempt] != 8 for attempt in (f"{OWN}.1.1", f"{OWN}.2.2"))
    return {Check.WRONG_COUNT: wrong} if wrong else {}


def _provenance(o: Out) -> str:
    """What readers see: that of the last such header."""
    texts = [(value or b"").decode() for name, value in o.headers if name == HEADER]
    return o.text or (texts[-1] if texts else "")


def test_each_corruption_of_a_topic_is_named_and_nothing_else_is(world: World, verdict: Verdict) -> None:
    expected = {c.name: {**c.finds, **miscounted(world, c)} for c in world.corruptions}

    assert expected == {sink: found(verdict, sink) for sink in expected}


def test_each_corruption_of_files_and_of_outputs_without_provenance_is_named(world: World, verdict: Verdict) -> None:
    expected = {**world.lines, **world.plain}

    assert expected == {sink: found(verdict, sink) for sink in expected}


def test_no_check_is_left_to_the_campaign() -> None:
    """Of each that a corruption of the catalogue fails, `make test` has one."""
    by_name: dict[str, Mapping[Check, int]] = {**{c.name: c.finds for c in CORRUPTIONS}, **PLAIN, **FILES}

    some = {check for name in SOME for check in by_name[name]}
    assert some == {check for finds in by_name.values() for check in finds}


def test_dead_letters_are_audited_and_rows_that_a_sink_refuses_are_expected_there(verdict: Verdict) -> None:
    letters = next(sink for f in verdict.findings for sink in f.by_sink if "letter" in sink)

    assert LETTERS == found(verdict, letters)
    assert {} == found(verdict, "picky")


def test_the_verdict_of_all_is_fail_and_says_what_was_not_judged(world: World, verdict: Verdict) -> None:
    assert Conclusion.FAIL is verdict.conclusion, verdict.headline
    assert not verdict.skipped
    notes = [note for note in verdict.facts.notes if "writes no provenance" in note]
    assert len([sink for sink in (*world.plain, *world.lines) if sink.startswith("plain")]) == len(notes)


def test_an_audit_leaves_no_job_directory_behind(world: World, spark: Any) -> None:
    elsewhere = Job(world.job.bootstrap, world.directory / "elsewhere", world.job.app, world.job.name)

    verdict = elsewhere.audit(spark)

    assert Conclusion.INCONCLUSIVE is verdict.conclusion
    assert not elsewhere.directory.exists()
