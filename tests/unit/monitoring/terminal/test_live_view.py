"""What ``kafka-eos run`` shows of a running job."""

from __future__ import annotations

import errno
import io

import pytest
from rich.console import Console

from kafka_eos.api.run import (
    describe_input,
    describe_late_rows,
    describe_output,
    describe_set_aside,
)
from kafka_eos.monitoring.terminal import live_view as output
from kafka_eos.monitoring.terminal.live_view import LiveView
from kafka_eos.monitoring.terminal.run_totals import Totals


def test_the_rate_begins_anew_with_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])
    view = LiveView("job")

    rates = []
    for records in (1000, 3000, 0, 500):
        clock[0] += 1.0
        view("progress", {"records_in": records, "records_out": 0, "lag": None})
        rates.append(dict(view._cells())["records/s"])

    assert rates == ["1,000", "2,000", "0", "500"]


class Log(io.StringIO):
    """A log file on a disk that is full, for now."""

    full = True

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_a_log_file_without_room_ends_nothing_and_has_each_line_once_there_is_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = Log()
    monkeypatch.setattr(output, "console", Console(file=log, width=200))

    output.print_message("one")
    output.print_message("two")
    log.full = False
    output.print_message("three")

    assert log.getvalue().split() == ["one", "two", "three"]


def test_reports_that_come_at_once_after_an_outage_are_one_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])
    view = LiveView("job")

    rates = []
    for after, records in ((1, 1000), (20, 5000), (0.001, 9000), (0.001, 11000), (1, 12000)):
        clock[0] += after
        view("progress", {"records_in": records, "records_out": 0, "lag": None})
        rates.append(dict(view._cells())["records/s"])

    assert rates == ["1,000", "200", "200", "200", "6,986"]


def test_a_long_restore_is_shown_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    said: list[str] = []
    monkeypatch.setattr(output.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(output, "print_message", said.append)
    view = LiveView("job")

    for second in range(1, 13):
        clock[0] = second
        view("restoring", {"text": f"{second} of 12 GB"})
    view("running", {"term": 2})
    clock[0] = 100
    view("restoring", {"text": "0 of 12 GB"})

    assert [line for line in said if "GB" in line] == ["6 of 12 GB", "11 of 12 GB"]


def test_who_waits_for_which_table_is_said_until_nobody_does(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(output, "print_message", said.append)
    view = LiveView("job")

    view("tables", {"waiting": {"orders": ["rates"]}})
    view("tables", {"waiting": {"orders": []}})

    assert said == ["source orders waits until rates is read to the end"]


def test_the_column_of_dead_letters_holds_figures() -> None:
    view = LiveView("job")

    view("dead-letters", {"total": {"orders": {"parse": 7, "total": 1}}})

    assert dict(view._cells())["dead letters"] == "8 (orders: 7 by parse, 1 by total)"


def test_late_rows_are_in_a_column_once_there_are_some_and_at_the_end_of_a_run() -> None:
    view = LiveView("job")
    assert "late" not in dict(view._cells())

    view("late-rows", {"total": {"windows": 1200, "alerts": 3}})

    assert dict(view._cells())["late"] == "1,203"
    assert describe_late_rows(view.late) == ", 1,203 late rows (1,200 at windows, 3 at alerts)"
    assert describe_late_rows({"windows": 1}) == ", 1 late row (1 at windows)"
    assert describe_late_rows({}) == ""


def test_rows_set_aside_are_in_a_column_once_there_are_some_and_at_the_end_of_a_run() -> None:
    view = LiveView("job")
    assert "set aside" not in dict(view._cells())

    view("set-aside", {"total": {"ship": 1200, "mail": 3}})

    assert dict(view._cells())["set aside"] == "1,203"
    refused = ", 1,203 rows refused by the receiver and set aside (1,200 of ship, 3 of mail)"
    assert describe_set_aside(view.set_aside) == refused
    assert describe_set_aside({}) == ""


def test_what_a_run_has_committed_is_told_at_its_end_by_sink() -> None:
    view = LiveView("job")
    for records in ({"totals": 1000, "bad": 0}, {"totals": 500, "bad": 0}):
        view("committed", {"epoch": 1, "seconds": 0.1, "records_by_sink": records})

    assert describe_output(view.written) == "; output of this run: 1,500 to totals"
    assert describe_output({}) == "; output of this run: none"


def _run(*epochs: tuple[int, int, int]) -> Totals:
    """Each epoch: records read, refused in the run so far, and written."""
    totals = Totals()
    for epoch, (read, refused, written) in enumerate(epochs):
        state: dict[str, object] = {"state_bytes_by_operator": {}}
        totals("decided", {"epoch": epoch, "read": {"orders": read}, **state})
        if refused:
            totals("dead-letters", {"total": {"orders": {"parse": refused}}})
        totals("committed", {"epoch": epoch, "records_by_sink": {"totals": written}})
    return totals


def test_what_was_read_counts_once_it_is_committed() -> None:
    totals = _run((1000, 0, 900), (500, 0, 500))
    totals("decided", {"epoch": 9, "read": {"orders": 7}, "state_bytes_by_operator": {}})

    assert describe_input(totals.read) == "; input of this run: 1,500 from orders"
    assert describe_input({}) == "; input of this run: none"


def test_a_run_of_nothing_but_dead_letters_is_told_apart() -> None:
    bad = [(4, 4, 0)], [(4, 4, 4)], [(4, 8, 8)]
    good = [(4, 3, 1)], [(4, 4, 0), (1, 4, 1)], [(0, 0, 0)], [(4, 4, 8)]

    assert all(_run(*epochs).wrote_only_dead_letters for epochs in bad), "the dead letters may count as output"
    assert not any(_run(*epochs).wrote_only_dead_letters for epochs in good), "one of a record's results is refused"
