"""No sink of text passes on what could change a terminal, hide a line or forge one."""

from __future__ import annotations

import ast
import io
import json
import logging
import sys

import pytest
from rich.table import Table

from kafka_eos._util import logging_setup as logs
from kafka_eos._util.printable_text import as_message, printable_json
from kafka_eos.cli.output import echo, echo_json
from kafka_eos.core.package import PACKAGE
from kafka_eos.monitoring.terminal import live_view

TITLE = "\x1b]0;owned\x07"
FORGED = "bad\n12:00:00 CRITICAL orders supervisor: all output is lost (kafka_eos.job)"
HOSTILE = f"{TITLE}\x9b2J\u202e\r{FORGED}"


def is_harmless(text: str) -> bool:
    lines = text.splitlines()
    return all(line.isprintable() for line in lines) and not any(line.startswith("12:00:00 CRITICAL") for line in lines)


def test_a_message_is_one_message_and_its_own_lines_stay() -> None:
    assert is_harmless(as_message(HOSTILE))
    assert as_message(TITLE) == r"\x1b]0;owned\x07"
    assert as_message("PlanError: no\n  x = = 2\nline") == "PlanError: no\n  x = = 2\n  line"


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_line_escapes_what_it_quotes(form: str) -> None:
    formatter = logs._TextFormatter() if form == "text" else logs._JsonFormatter()
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        record = logging.LogRecord("app", logging.ERROR, "app.py", 1, "refused %s", (HOSTILE,), sys.exc_info())
    setattr(record, logs._WHO_FIELD, None)

    line = formatter.format(record)

    assert is_harmless(line), line
    if form == "json":
        assert json.loads(line)["message"] == f"refused {HOSTILE}"


def test_messages_and_tables_on_a_terminal_are_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(live_view, "console", live_view._open_console(file=out, force_terminal=True, width=300))
    monkeypatch.setattr(live_view, "open_stdout_console", lambda: live_view.console)
    table = Table("name")
    table.add_row(TITLE)

    live_view.print_message(HOSTILE, (TITLE, "bold red"))
    live_view.print_output(table)

    assert "\x1b]0;" not in out.getvalue()
    assert "\x9b" not in out.getvalue()
    assert "\n12:00:00 CRITICAL" not in out.getvalue()
    assert out.getvalue().count(r"\x1b]0;owned") == 3


def test_the_results_of_commands_are_escaped_and_json_stays_json(capsys: pytest.CaptureFixture[str]) -> None:
    echo(TITLE)
    echo_json(json.dumps({"name": HOSTILE + "\U000e0001"}, ensure_ascii=False))

    first, second = capsys.readouterr().out.splitlines()
    assert first == r"\x1b]0;owned\x07"
    assert second.isprintable()
    assert json.loads(second) == {"name": HOSTILE + "\U000e0001"}


def test_printable_json_is_unchanged() -> None:
    assert printable_json('{"a": "ü"}') == '{"a": "ü"}'


def test_no_module_has_a_sink_of_its_own() -> None:
    """``echo`` of typer, ``print`` and consoles are in one place each."""
    calls = {
        (str(path.relative_to(PACKAGE)), ast.unparse(node.func))
        for path in PACKAGE.rglob("*.py")
        if "connectors" not in path.parts
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("print", "typer.echo", "Console", "click.echo")
    }

    assert calls == {
        ("audit/report/audit_outcome.py", "print"),
        ("cli/output.py", "typer.echo"),
        ("monitoring/terminal/live_view.py", "Console"),
        ("testing/preview.py", "Console"),  # it writes a text, whose control characters are escaped
    }
