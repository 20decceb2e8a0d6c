"""Dead letters after the fact: what is read of them, which are meant, how they are shown; without a broker."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from kafka_eos import Pipeline
from kafka_eos.abc.context import JobContext
from kafka_eos.cli import app
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter
from kafka_eos.connectors.kafka.sink.dead_letters import (
    DeadLetter,
    DeadLetterEncoder,
    RestoredRecordEncoder,
    encode_dead_letter,
    shorten_dead_letter,
)
from kafka_eos.core.errors import ConfigError, KafkaEosError
from kafka_eos.core.ids import Term
from kafka_eos.core.records import Headers, RawRecord, Record, RejectedRecord
from kafka_eos.ops.dead_letters.reader import read_dead_letters
from kafka_eos.ops.dead_letters.replay_progress import ReplayTarget, expect_origin
from kafka_eos.ops.dead_letters.replay_request import VARIABLE, ReplayRequest
from kafka_eos.ops.dead_letters.selection import Selection, offsets_of, time_of
from kafka_eos.ops.dead_letters.text_output import OTHERS, DeadLetterSummary, as_json, format_dead_letter, readable
from kafka_eos.ops.dead_letters.topics import find_dead_letter_topics
from tests.broker.kafka_kit import batch
from tests.kafka_log import Log

APP = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource, dead_letter
from kafka_eos.testing import ListSource

pipeline = Pipeline("orders")
a = pipeline.source(KafkaSource("a"), name="a", on_error={a})
b = pipeline.source({b}, name="b", on_error=dead_letter("refused"))
a.union(b, name="both").sink(KafkaSink("out", value=bytes), name="out")
"""
LETTERS = 'dead_letter("refused")'
OURS = (("kafka_eos", b"where the letter was written from"),)


def _raw(**given: object) -> RawRecord:
    fields = {"topic": "orders", "partition": 2, "offset": 17, "timestamp": 1_000, "key": b"k", "value": b"v",
              "headers": ()}  # fmt: skip
    return RawRecord(**{**fields, **given})  # type: ignore[arg-type]


def _sent(raw: RawRecord, operator: str = "parse", error: str = "ValueError", message: str = "no é") -> RawRecord:
    """The record of its dead letter, as it is in the dead letter topic."""
    value, key, timestamp, headers = encode_dead_letter(RejectedRecord(raw, operator, error, message))
    return RawRecord("refused", 0, 5, timestamp, key, value, (*headers, *OURS))


def _opened(sent: RawRecord) -> DeadLetter | None:
    return DeadLetter.from_record(Record(sent.key, sent.value, tuple(sent.headers), sent.timestamp))


def _letter(**given: object) -> DeadLetter:
    found = _opened(_sent(_raw(), **{k: v for k, v in given.items() if k in ("operator", "error", "message")}))  # type: ignore[arg-type]
    assert found is not None
    return DeadLetter(**{**{f: getattr(found, f) for f in DeadLetter.__struct_fields__}, **given})


@pytest.mark.parametrize(
    "headers",
    [(), (("trace", b"1"), ("none", None), ("trace", b"2")), (("dead_letter.message", b"of another"),)],
    ids=["none", "some", "of a letter"],
)
@pytest.mark.parametrize(("key", "value"), [(b"\xff", b"\0"), (None, None), (b"", b"")])
def test_a_letter_gives_the_record_back_as_it_was(headers: Headers, key: bytes | None, value: bytes | None) -> None:
    raw = _raw(headers=headers, key=key, value=value)

    letter = _opened(_sent(raw))

    assert letter is not None
    columns = RestoredRecordEncoder(in_place=True)(batch(letter))
    assert (columns.values, list(columns.keys), list(columns.timestamps)) == ([value], [key], [1_000])
    assert columns.headers == [headers]
    assert list(columns.partitions or ()) == [2]
    assert (letter.operator, letter.error, letter.message) == ("parse", "ValueError", "no é")
    assert letter.identity == ("orders", 2, 17, 1_000)


@pytest.mark.parametrize(("key", "kept"), [(b"k", b"k"), (None, None), (b"k" * 2000, None)])
def test_a_letter_without_the_contents_of_its_record_says_how_many_bytes_it_lacks(
    key: bytes | None, kept: bytes | None
) -> None:
    raw = _raw(key=key, value=b"v" * 100, headers=(("trace", b"1"), ("dead_letter.left_out", b"7")))
    value, written, headers = shorten_dead_letter(RejectedRecord(raw, "parse", "ValueError", "no é"))

    letter = _opened(RawRecord("refused", 0, 5, 1_000, written, value, (*headers, *OURS)))

    assert letter is not None
    assert (letter.key, letter.value, letter.headers) == (kept, None, ())
    assert letter.left_out == 100 + len(key or b"") + len("trace1") + len("dead_letter.left_out7")
    assert letter.identity == ("orders", 2, 17, 1_000)
    assert as_json("refused/0/5", letter)["left_out"] == letter.left_out
    assert any(f"its {letter.left_out:,} bytes are too many" in line for line in format_dead_letter("p", letter, 100))
    summary, meant = DeadLetterSummary(), Selection(topic="orders")
    for each in (_letter(), letter, letter):
        summary.add(each, meant)
    assert (summary.total, summary.shortened, summary.first_shortened) == (3, 2, "orders/2/17")


def test_a_header_of_the_record_itself_says_nothing_about_its_letter() -> None:
    letter = _opened(_sent(_raw(headers=(("dead_letter.left_out", b"7"),))))

    assert letter is not None
    assert (letter.left_out, letter.headers) == (0, (("dead_letter.left_out", b"7"),))


def test_a_number_of_bytes_that_is_none_is_no_letter() -> None:
    sent = _sent(_raw())

    assert _opened(replace(sent, headers=(*sent.headers, ("dead_letter.left_out", b"many")))) is None


def test_each_rejected_record_is_written_as_its_own_letter() -> None:
    rejected = [RejectedRecord(_raw(offset=n, key=b"%d" % n, timestamp=n), "parse", f"E{n}", "") for n in (1, 2)]

    written = DeadLetterEncoder()(batch(*rejected))

    assert written.headers is not None and written.partitions is None
    rows = zip(written.values, written.keys, written.timestamps, written.headers, strict=True)
    assert [*rows] == [*map(encode_dead_letter, rejected)]


def test_a_letter_that_was_refused_itself_gives_the_letter_back() -> None:
    first = _sent(_raw(headers=(("trace", b"1"),)))

    second = _opened(_sent(first, "again", "KeyError", "it"))

    assert second is not None
    assert (second.where, second.operator) == ("refused/0/5", "again")
    renamed = tuple((name.replace("kafka_eos", "dead_letter.kafka_eos"), value) for name, value in first.headers)
    assert second.headers == renamed


def test_a_record_without_a_time_is_put_back_without_one() -> None:
    letter = _opened(_sent(_raw(timestamp=-1)))

    assert letter is not None
    assert letter.timestamp == -1
    assert list(RestoredRecordEncoder(in_place=False)(batch(letter)).timestamps) == [0]
    assert RestoredRecordEncoder(in_place=False)(batch(letter)).partitions is None


@pytest.mark.parametrize(("time", "written"), [(1, 1), (0, 1), (-5_000, -5_000)])
def test_a_time_at_or_before_0_is_kept(time: int, written: int) -> None:
    """The letter itself has it, and the record that is put back; the client cannot write 0."""
    sent = _sent(_raw(timestamp=time))
    letter = _opened(sent)

    assert letter is not None
    assert (sent.timestamp, letter.timestamp) == (written, time)
    assert list(RestoredRecordEncoder(in_place=False)(batch(letter)).timestamps) == [written]
    assert "no time" not in "".join(format_dead_letter("refused/0/5", letter, 100))


@pytest.mark.parametrize("damage", [{}, {"dead_letter.offset": b"x"}, {"dead_letter.topic": b"\xff"}], ids=str)
def test_what_is_no_letter_is_none(damage: Mapping[str, bytes]) -> None:
    headers = tuple((name, damage.get(name, value)) for name, value in _sent(_raw()).headers) if damage else OURS

    assert DeadLetter.from_record(Record(b"k", b"v", headers)) is None


@pytest.mark.parametrize(
    ("place", "said"),
    [
        ({"partition": 9}, r"orders/9/17 was in a partition that topic orders no longer has"),
        ({"offset": 18}, r"names the record orders/2/18, and that partition ends at 18"),
        ({"topic": "orders\x1b]0;x\x07", "partition": 9}, r"orders\\x1b\]0;x\\x07"),
    ],
)
def test_a_letter_of_a_record_that_never_existed_is_not_put_back(place: Mapping[str, object], said: str) -> None:
    expect_origin(_letter(), {2: 18})

    with pytest.raises(ConfigError, match=said):
        expect_origin(_letter(**place), {2: 18})


@pytest.mark.usefixtures("instant_topic_search")
def test_a_replay_to_a_topic_that_does_not_exist_is_refused_before_anything_is_read() -> None:
    pipeline = Pipeline("orders")
    source = pipeline.source(KafkaSource("in"), name="a", on_error=dead_letter("refused"))
    source.sink(KafkaSink("out", value=bytes), name="out")
    topics = find_dead_letter_topics(pipeline.plan(), None)

    with Log().served() as broker:
        ctx = JobContext("orders", Term(1), {"bootstrap_servers": broker.address})
        with pytest.raises(ConfigError, match="the topic 'nowhere' does not exist"):
            ReplayTarget(topics, "nowhere", ctx)
        with pytest.raises(ConfigError, match="is the topic of the dead letters"):
            ReplayTarget(topics, "refused", ctx)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, True),
        ({"topic": "others"}, False),
        ({"operator": "parse"}, True),
        ({"operator": "pars"}, False),
        ({"reason": "valueERROR: NO"}, True),
        ({"reason": "key"}, False),
        ({"since": 1_000, "until": 1_001}, True),
        ({"since": 1_001}, False),
        ({"until": 1_000}, False),
        ({"partition": 2, "first": 17, "last": 17}, True),
        ({"partition": 1}, False),
        ({"partition": 2, "first": 18}, False),
        ({"partition": 2, "last": 16}, False),
    ],
    ids=str,
)
def test_a_selection_means_what_all_of_its_parts_mean(given: dict[str, object], expected: bool) -> None:
    selection = Selection(**{"topic": "orders", **given})  # type: ignore[arg-type]

    assert selection.includes(_letter()) is expected


@pytest.mark.parametrize("operator", [None, "now", "before"])
def test_an_operator_of_the_pipeline_or_of_a_letter_may_be_meant(operator: str | None) -> None:
    Selection(topic="orders", operator=operator).expect_operator(present=["now"], refused=["before"])


@pytest.mark.parametrize(
    ("refused", "named"),
    [
        ([], "Dead letters name none; the pipeline has 'now'"),
        (["be\x1bfore", "also"], r"Dead letters name 'also', 'be\x1bfore'; the pipeline"),
        ([f"{n:02}" + 500 * "x" for n in range(25)], f"'18{98 * 'x'}', '19{98 * 'x'}', 5 more; the pipeline has 'now'"),
    ],
)
def test_an_operator_that_nobody_knows_is_refused_with_those_that_there_are(refused: list[str], named: str) -> None:
    with pytest.raises(ConfigError) as error:
        Selection(topic="orders", operator="nosuch").expect_operator(present=["now"], refused=refused)

    assert "--operator 'nosuch': neither the pipeline nor a dead letter" in str(error.value)
    assert named in str(error.value)


def test_a_record_without_a_time_is_before_none() -> None:
    assert not Selection(topic="orders", until=5).includes(_letter(timestamp=-1))


@pytest.mark.parametrize(
    ("text", "expected"),
    [(None, (None, None)), ("17", (17, 17)), ("17-29", (17, 29)), ("17-", (17, None)), ("-29", (None, 29))],
)
def test_offsets_are_one_or_a_range(text: str | None, expected: tuple[int | None, int | None]) -> None:
    assert offsets_of(text) == expected


@pytest.mark.parametrize("text", ["", "-", "a", "1-2-3", "3-2", "²", "1.5"])
def test_other_offsets_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="--offsets"):
        offsets_of(text)


def test_a_time_may_say_where_it_is() -> None:
    assert time_of("1970-01-01T00:00:01.500Z", "--since") == 1500
    assert time_of("1970-01-01T01:00:01+01:00", "--since") == 1000


@pytest.mark.parametrize(
    ("data", "most", "expected"),
    [
        (b"plain \xc3\xa9", 100, "plain é"),
        (b"\xff\x00a\\", 100, "\\xff\\x00a\\\\"),
        ("a\x1b[31m\nb", 100, "a\\x1b[31m\\nb"),
        (b"abcdef", 3, "abc … (3 more)"),
        (b"abc", 3, "abc"),
        (b"ab\xc3\xa9", 3, "ab … (1 more)"),
        (b"\xff\xff\xff\xff", 2, "\\xff\\xff … (2 more)"),
        (b"", 5, ""),
    ],
)
def test_bytes_of_strangers_are_readable_and_harmless(data: bytes | str, most: int, expected: str) -> None:
    assert readable(data, most) == expected


def test_a_letter_is_shown_whole() -> None:
    letter = _letter(value=None, key=None, timestamp=10**18, headers=(("trace", None), ("t", b"\xff")))

    assert list(format_dead_letter("refused/0/5", letter, 100)) == [
        "orders/2/17  time 1000000000000000000  rejected by parse",
        "  ValueError: no é",
        "  dead letter refused/0/5, no key, no value (a tombstone)",
        "  header trace: (null)",
        "  header t: \\xff",
    ]
    assert list(format_dead_letter("refused/0/5", _letter(value=b"paid"), 100))[-1] == "  paid"
    told = as_json("refused/0/5", letter)
    assert told["headers"] == [{"name": "trace", "value": None}, {"name": "t", "value_base64": "/w=="}]


def test_reasons_are_listed_with_their_first_and_last_record_the_most_frequent_first() -> None:
    counts = DeadLetterSummary()
    for offset, reason in enumerate(["c/V", "b/K", "a/V", "c/V", "b/V", "b/K", "c/V"]):
        operator, error = reason.split("/")
        counts.add(_letter(operator=operator, error=error, offset=offset), Selection(topic="orders"))

    assert [tuple(row.values()) for row in counts.rows()] == [
        ("c", "V", 3, "orders/2/0", "orders/2/6"),
        ("b", "K", 2, "orders/2/1", "orders/2/5"),
        ("a", "V", 1, "orders/2/2", "orders/2/2"),
        ("b", "V", 1, "orders/2/4", "orders/2/4"),
    ]
    assert list(next(counts.rows())) == ["operator", "error", "count", "first", "last"]


def test_counts_take_as_much_memory_for_a_million_reasons_as_for_a_thousand() -> None:
    counts = DeadLetterSummary()

    for number in range(1_500):
        counts.add(_letter(error=f"E{number}", offset=number), Selection(topic="orders"))
    counts.add(None, Selection(topic="orders"))

    rows = list(counts.rows())
    assert len(rows) == 1_001
    assert (rows[0]["operator"], rows[0]["error"]) == OTHERS
    assert (rows[0]["count"], rows[0]["first"], rows[0]["last"]) == (500, "orders/2/1000", "orders/2/1499")
    assert (counts.total, counts.other_records) == (1_500, 1)


def test_counts_know_some_of_many_operators_and_the_one_that_is_meant() -> None:
    counts = DeadLetterSummary()

    for number in range(1_500):
        counts.add(_letter(operator=f"o{number}"), Selection(topic="orders", operator="o1499", since=5_000))

    assert counts.total == 0
    assert len(counts.operators) == 1_001
    assert "o1499" in counts.operators


@pytest.mark.parametrize(
    ("sources", "options", "said"),
    [
        (
            (LETTERS, 'KafkaSource("b")'),
            (),
            "several sources of 'orders' have dead letters: choose one with --source a | b",
        ),
        (
            (LETTERS, 'KafkaSource("b")'),
            ("--source", "c"),
            "no source 'c' with dead letters; sources with dead letters: 'a', 'b'",
        ),
        (('"stop"', "ListSource([])"), (), "source 'b' or its dead letters are not in Kafka"),
        (('"stop"', 'KafkaSource("b")'), ("--offsets", "3"), "add --partition"),
        (('"stop"', 'KafkaSource("b")'), ("--since", "now"), "--since: 'now' is not a valid time"),
        (('"stop"', 'KafkaSource("b")'), ("--job", "orders"), "the pipeline's own name"),
        (('"stop"', 'KafkaSource("b")'), ("--to", "refused", "-b", "localhost:1"), "is the topic of the dead letters"),
    ],
)
def test_what_cannot_be_replayed_is_refused_with_the_reason(
    sources: tuple[str, str], options: tuple[str, ...], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "")
    file = tmp_path / "orders.py"
    file.write_text(APP.format(a=sources[0], b=sources[1]))

    result = CliRunner().invoke(app, ["dead-letters", "replay", str(file), *options])

    assert isinstance(result.exception, ConfigError)
    assert said in str(result.exception)


def test_all_records_of_the_topic_are_read_with_their_places() -> None:
    """A record that is no dead letter is told, too."""
    log, letters = Log(2, "refused"), [_sent(_raw(offset=n, value=b"%d" % n)) for n in range(5)]
    for partition in (0, 1):
        log.append(partition, b"of another program")
        for sent in letters[partition::2]:
            log.append(partition, sent.value, headers=[(name.encode(), value or b"") for name, value in sent.headers])

    with log.served() as broker:
        source = KafkaSource.records("refused")
        ctx = JobContext("orders", Term(0), {"bootstrap_servers": broker.address})
        found = dict(read_dead_letters(source, ctx))

    assert {place: letter and letter.offset for place, letter in found.items()} == {
        "refused/0/0": None, "refused/0/1": 0, "refused/0/2": 2, "refused/0/3": 4,
        "refused/1/0": None, "refused/1/1": 1, "refused/1/2": 3,
    }  # fmt: skip


def test_the_replays_file_says_how_it_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)

    with pytest.raises(KafkaEosError, match="kafka-eos dead-letters replay"):
        ReplayRequest.from_environment()
