"""Log lines say whose they are, as text and as JSON; what user code has set up stays; repeated lines are counted."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer

from kafka_eos import ConfigError
from kafka_eos._util import logging_setup as logs
from kafka_eos._util.logging_setup import QUIET_SECONDS, RepeatFilter
from kafka_eos.config.settings import Settings
from kafka_eos.connectors.kafka.client.log_bridge import LOGGER, SPOKEN, read
from kafka_eos.monitoring.terminal.event_log import PROGRESS_SECONDS, EventLog
from tests.waiting import eventually

BEGIN = "import logging, sys\nfrom kafka_eos._util import logging_setup as logs\n"
SPEAK = """
logs.set_log_epoch(term=3)
try:
    1 / 0
except ZeroDivisionError:
    logging.getLogger("prices").warning("no price for %s", "tea", exc_info=True, extra={"item": "tea", "job": "mine"})
logging.getLogger("prices").info("fine")
"""


def said(tmp_path: Path, program: str) -> list[str]:
    """What a process of its own says: logging is of a process as a whole."""
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stderr.splitlines()


def record(text: str, **attributes: object) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": text, "name": "x", "levelno": logging.ERROR, **attributes})


def test_a_line_of_text_says_whose_it_is(tmp_path: Path) -> None:
    lines = said(tmp_path, f"{BEGIN}logs.configure_logging('orders', 'worker 1', 'text', {{}}){SPEAK}")

    assert lines[0].endswith(" WARNING orders worker 1 term 3: no price for tea (prices)")
    assert lines[-1] == "  ZeroDivisionError: division by zero"


WARN = """
import warnings
warnings.warn("what a library says of a record: \\x1b]0;owned\\x07")
"""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_warning_is_a_line_of_the_log(form: str, tmp_path: Path) -> None:
    lines = said(tmp_path, f"{BEGIN}logs.configure_logging('orders', 'worker 1', {form!r}, {{}}){WARN}")

    assert all(line.isprintable() for line in lines)
    if form == "json":
        (said_of,) = map(json.loads, lines)
        assert (said_of["level"], said_of["logger"]) == ("warning", "py.warnings")
        assert "UserWarning: what a library says of a record: \x1b]0;owned\x07" in said_of["message"]
    else:
        assert " WARNING orders worker 1: " in lines[0]
        assert r"UserWarning: what a library says of a record: \x1b]0;owned\x07" in lines[0]


ODD = """
logs.set_log_epoch(term=3)
log = logging.getLogger("odd")
round = {}
round["self"] = round
log.warning("half \\ud800", extra={"ratio": float("nan"), "by": {("a", 1): 2}, "round": round, "n": 1, "at": sys})
log.warning("stack", stack_info=True)
"""


def test_a_line_of_json_is_json_whatever_is_in_it(tmp_path: Path) -> None:
    lines = said(tmp_path, f"{BEGIN}logs.configure_logging('orders', 'worker 1', 'json', {{}}){ODD}")
    first, second = (json.loads(line, parse_constant=pytest.fail) for line in lines)

    assert first["message"] == "half \ud800" and first["term"] == 3
    shown = first["extra"]
    assert (shown["ratio"], shown["by"], shown["n"]) == ("nan", "{('a', 1): 2}", 1)
    assert shown["round"] == "{'self': {...}}" and "module 'sys'" in shown["at"]
    assert second["stack"].startswith("Stack (most recent call last)")


def test_a_line_of_json_has_all_that_is_known(tmp_path: Path) -> None:
    lines = said(tmp_path, f"{BEGIN}logs.configure_logging('orders', 'worker 1', 'json', {{'prices': 'info'}}){SPEAK}")
    first, second = (json.loads(line) for line in lines)

    assert first.pop("at").endswith("Z") and "ZeroDivisionError" in first.pop("exception")
    assert first == {
        "level": "warning", "logger": "prices", "message": "no price for tea", "job": "orders", "process": "worker 1",
        "term": 3, "extra": {"item": "tea", "job": "mine"},
    }  # fmt: skip
    assert (second["level"], second["message"]) == ("info", "fine")


AT = """
from kafka_eos import Pipeline; from kafka_eos._util import log_context
from kafka_eos.testing import ListSource, MemorySink, run_local
def look(value):
    if value == 2:
        logging.getLogger("prices").warning("odd")
    return value
pipeline = Pipeline("looks")
pipeline.source(ListSource([1, 2, 3]), name="in").map(look, name="priced").sink(MemorySink(), name="out")
run_local(pipeline, {"in": [1, 2, 3]})
logging.getLogger("prices").warning("after")
"""


def test_a_line_of_a_function_says_which_operator_and_record(tmp_path: Path) -> None:
    odd, after = said(tmp_path, f"{BEGIN}logs.configure_logging('orders', 'worker 1', 'json', {{}})\n{AT}")
    text, _ = said(tmp_path, f"{BEGIN}logs.configure_logging('orders', 'worker 1', 'text', {{}})\n{AT}")

    fields = {name: json.loads(odd).get(name) for name in ("operator", "topic", "partition", "offset")}
    assert fields == {"operator": "priced", "topic": "in", "partition": 0, "offset": 1}
    assert not fields.keys() & json.loads(after).keys()
    assert text.endswith(" WARNING orders worker 1 operator priced, record in/0/1: odd (prices)")


def test_what_a_users_file_has_set_up_stays(tmp_path: Path) -> None:
    own = "logging.basicConfig(level='INFO', format='%(kafka_eos)s|%(message)s')\n"
    lines = said(tmp_path, f"{BEGIN}{own}logs.configure_logging('orders', 'worker 1', 'text', {{}}){SPEAK}")

    assert (lines[0], lines[-1]) == ("orders worker 1 term 3|no price for tea", "orders worker 1 term 3|fine")


def test_with_json_files_of_users_stay_and_terminals_speak_json(tmp_path: Path) -> None:
    own = "logging.basicConfig(handlers=[logging.StreamHandler(), logging.FileHandler('own.log')])\n"
    lines = said(tmp_path, f"{BEGIN}{own}logs.configure_logging('orders', 'worker 1', 'json', {{}}){SPEAK}")

    assert [json.loads(line)["message"] for line in lines] == ["no price for tea"]
    assert (tmp_path / "own.log").read_text().startswith("WARNING:prices:no price for tea\n")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("info", {"": "info"}),
        ("WARNING, a.b = debug", {"": "warning", "a.b": "debug"}),
        ({"a": "Info"}, {"a": "info"}),
    ],
)
def test_levels_are_of_all_loggers_or_of_one(given: object, expected: dict[str, str]) -> None:
    assert Settings.resolve(code={"log_level": given}).log_level == expected


@pytest.mark.parametrize("given", ["loud", "a=loud", "", {"a": 3}, 3])
def test_what_is_no_level_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="setting log_level"):
        Settings.resolve(code={"log_level": given})


def test_the_same_again_is_counted() -> None:
    now = [0.0]
    seldom = RepeatFilter(read=read, clock=lambda: now[0])
    text = "FAIL [rdkafka#producer-{}] [thrd:a:1/bootstrap]: a:1: Connect failed: refused (after {}ms)"
    through: list[str] = []
    for second in range(int(QUIET_SECONDS) + 1):
        now[0] = float(second)
        line = record(text.format(second, second))
        if seldom.filter(line):
            through.append(line.getMessage())
    other = record("FAIL [rdkafka#producer-1] [thrd:a:1/bootstrap]: a:1: Disconnected 100%")
    assert seldom.filter(other)

    assert [*through, other.getMessage()] == [
        "Kafka client producer-0: a:1: Connect failed: refused (after 0ms)",
        "Kafka client producer-30: a:1: Connect failed: refused (after 30ms) (29 more in the last 30 s)",
        "Kafka client producer-1: a:1: Disconnected 100%",
    ]


def test_a_client_that_reaches_nobody_says_so_once_through_logging(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOGGER, "filters", [RepeatFilter(read=read)])
    refused: list[int] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": "127.0.0.1:1", "group.id": "g", "reconnect.backoff.ms": 1,
        "reconnect.backoff.max.ms": 5, "error_cb": refused.append, **SPOKEN,
    }  # fmt: skip
    consumer = Consumer(settings)
    try:
        eventually(lambda: consumer.poll(0.01) or len(refused) > 2, "it tries again and again")
    finally:
        consumer.close()

    lines = [each.getMessage() for each in caplog.records if "Connection refused" in each.getMessage()]
    assert len(lines) == 1 and lines[0].startswith("Kafka client consumer-")
    assert "rdkafka" not in capfd.readouterr().err


def test_a_line_about_a_bad_record_has_its_place_as_fields() -> None:
    bad = {"operator": "parse", "where": "orders/2/17", "reason": "ValueError: no"}
    line = logs._JsonFormatter().format(record("failed", **{logs.EVENT_FIELD: ("failed", bad)}))

    fields = json.loads(line)
    assert (fields["operator"], fields["topic"], fields["partition"], fields["offset"]) == ("parse", "orders", 2, 17)


def test_each_record_that_was_refused_is_a_line_once(caplog: pytest.LogCaptureFixture) -> None:
    log = EventLog()
    bad = {"operator": "parse", "where": "orders/2/17", "reason": "ValueError: no"}
    for epoch in (1, 2):
        log("dead-letters", {"epoch": epoch, "counts": {}, "total": {}, "first": {"in": [bad]}})

    told = [each.getMessage() for each in caplog.records]
    assert told.count("the record at orders/2/17 was rejected by operator parse: ValueError: no") == 1


def test_a_notice_that_is_repeated_is_a_line_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = EventLog(lambda: now[0])
    caplog.set_level(logging.INFO, "kafka_eos")
    for second in range(0, 61, 2):
        now[0] = float(second)
        log("notice", {"text": "go on: there is no room"})
        if second == 10:
            log("notice", {"text": "topic in has a new partition"})

    told = [each.getMessage() for each in caplog.records]
    assert told == [
        "notice: go on: there is no room",
        "notice: topic in has a new partition",
        *["notice: go on: there is no room"] * 2,
    ]


def test_a_worker_that_hangs_is_a_line_with_its_place(caplog: pytest.LogCaptureFixture) -> None:
    told = {"worker": 1, "process": 77, "seconds": 30.0, "stacks": "Thread 1"}
    EventLog()("hung", {**told, "place": "operator parse, record orders/2/17"})
    EventLog()("unresponsive", told)

    assert [each.getMessage() for each in caplog.records] == [
        "hung: worker 1, process 77, for 30 s, at operator parse, record orders/2/17",
        "unresponsive: worker 1, process 77, for 30 s",
    ]


def test_events_are_lines_with_their_facts(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    log = EventLog(lambda: now[0])
    caplog.set_level(logging.DEBUG, "kafka_eos")
    log("restarting", {"what": "WorkerDied", "reason": "killed by signal 9", "in_a_row": 1})
    log("committed", {"epoch": 4, "term": 2, "records_by_sink": {"out": 3}})
    for second in (0.0, 1.0, PROGRESS_SECONDS):
        now[0] = second
        log("progress", {"records_in": 5})
    log("failed", {"error": "Fatal", "reason": "gone"})

    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        ("WARNING", "restarting: killed by signal 9"), ("DEBUG", "committed"), ("INFO", "progress"),
        ("INFO", "progress"), ("ERROR", "failed: gone"),
    ]  # fmt: skip
    assert vars(caplog.records[0])[logs.EVENT_FIELD][1]["in_a_row"] == 1
    assert log.written == {"out": 3}
