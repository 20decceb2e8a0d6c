"""The text is checked against the code: commands, settings, links, examples and drawings cannot go stale unnoticed.

Rule: what a page copies from the code is compared with the code here; nothing is compared with another page.
"""

from __future__ import annotations

import ast
import datetime
import functools
import importlib.util
import inspect
import io
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any
from xmlrpc.client import Fault
from xmlrpc.server import SimpleXMLRPCServer

import fastavro
import msgspec
import psycopg
import pyarrow
import pyarrow.parquet
import pytest
import typer
from deltalake import DeltaTable
from msgspec.structs import replace
from pyiceberg.catalog import load_catalog

import kafka_eos
from docs.examples import state_machine
from kafka_eos import abc as interfaces
from kafka_eos._util.failpoints import POINTS
from kafka_eos.cli import LazyCommandGroup, app
from kafka_eos.codecs import Registry
from kafka_eos.config.settings import Settings
from kafka_eos.coordination.status_file import read_status
from kafka_eos.core import errors
from kafka_eos.core.ids import AppRef
from kafka_eos.core.records import MIN_EVENT_TIME, RawRecord
from kafka_eos.devtools.broker import Broker
from kafka_eos.embedded.supervisor import run
from kafka_eos.monitoring.metrics.catalogue import METRICS
from kafka_eos.protocol.watermark_alignment import NO_SPLIT, SplitProgress, find_splits_ahead
from kafka_eos.runtime.program import load_program
from kafka_eos.testing import SINK_CHECKS, SOURCE_CHECKS, AdvanceClock, TimestampedValue, run_local
from kafka_eos.testing.method_names import ABILITIES
from tests import avro_witness, json_witness, protobuf_witness
from tests.chaos.harness import read
from tests.producers import in_order
from tests.receiver import receiving
from tests.registry_server import RegistryServer
from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
COMMAND = re.compile(r"^### `(kafka-eos [^`]+)`$", re.MULTILINE)
_EXAMPLE = re.compile(r"^\| `([\w.]+)` \| \[", re.MULTILINE)
"""A line of a table of examples."""
COMMAND_PAGES = [text for page in PAGES if COMMAND.search(text := page.read_text(encoding="utf-8"))]

_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> list[str]:
    """The fenced blocks of one language."""
    text = page.read_text(encoding="utf-8")
    return [textwrap.dedent(body) for found, body in _FENCE.findall(text) if found == language]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def rows(text: str, first_heading: str) -> list[list[str]]:
    """The cells of the table whose first column has that heading."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {first_heading} |"):
            next(lines)
            found: list[list[str]] = []
            for row in lines:
                if not row.startswith("|"):
                    return found
                found.append([cell.strip() for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))])
            return found
    raise AssertionError(f"no table begins with a column {first_heading!r}")


# ---------------------------------------------------------------- commands


def commands() -> Iterator[tuple[str, Any]]:
    """Every command that a user can type, with its full name."""
    yield from _commands("kafka-eos", typer.main.get_command(app))


@functools.cache
def _known() -> Mapping[str, Any]:
    """To load all commands takes as long as to read all pages."""
    return dict(commands())


def _commands(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if isinstance(command, LazyCommandGroup):
        children = {child: command.load(child) for child in command.commands}
    if children is None:
        yield name, command
        return
    for child, below in sorted(children.items()):
        yield from _commands(f"{name} {child}", below)


def section(name: str) -> str:
    """Return the section about one command, from its heading to the next."""
    found = [after for page in COMMAND_PAGES for _, heading, after in [page.partition(f"\n### `{name}`\n")] if heading]
    assert len(found) == 1, f"{len(found)} pages of docs/ have a section '### `{name}`', not one"
    return found[0].partition("\n## ")[0].partition("\n### ")[0]


@pytest.mark.parametrize(("name", "command"), list(commands()), ids=[name for name, _ in commands()])
def test_every_command_and_option_is_documented(name: str, command: Any) -> None:
    text = section(name)

    options = [opt for p in command.params for opt in p.opts if opt.startswith("--") and opt != "--help"]
    missing = [option for option in options if f"`{option}`" not in text and f"`{option} " not in text]

    assert missing == []


def test_no_command_is_documented_that_does_not_exist() -> None:
    documented = {name for page in COMMAND_PAGES for name in COMMAND.findall(page)}

    assert documented == {name for name, _ in commands()}


def test_the_index_of_operations_links_every_command() -> None:
    index = (ROOT / "docs/operations.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\(\S+\.md#(kafka-eos-[a-z-]+)\)", index))

    assert linked == {name.replace(" ", "-") for name, _ in commands()}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_command_line_shown_has_options_that_exist(page: Path) -> None:
    known, wrong = _known(), []
    for line in _command_lines(page):
        words = line.split()
        name = next((" ".join(words[:n]) for n in (4, 3, 2) if " ".join(words[:n]) in known), None)
        if name is None:
            wrong.append(line)
            continue
        options = {opt for p in known[name].params for opt in (*p.opts, *p.secondary_opts)} | {"--help"}
        wrong += [line for word in words if word.startswith("-") and word.split("=")[0] not in options]

    assert wrong == []


def _command_lines(page: Path) -> list[str]:
    """``kafka-eos …`` lines of shell blocks, without what a shell adds."""
    lines = [line for lang in ("sh", "bash", "console") for block in blocks(page, lang) for line in block.splitlines()]
    calls = [re.split(r"[#&|>;]", line.removeprefix("$ ").strip())[0].strip() for line in lines]
    return [call for call in calls if call.startswith("kafka-eos ") and not call.startswith("kafka-eos --")]


# ---------------------------------------------------------------- copies of the code


def test_the_drawings_show_what_the_code_does() -> None:
    draw = _load(ROOT / "docs/draw.py")

    assert [drawing.page for drawing in draw.stale()] == [], "run: make docs"


def test_every_public_name_has_an_entry_in_the_reference() -> None:
    listed = set(
        re.findall(r"^::: kafka_eos\.(\w+)$", (ROOT / "docs/api.md").read_text(encoding="utf-8"), re.MULTILINE)
    )
    on_other_pages = {name for name in kafka_eos.__all__ if getattr(errors, name, None) or name.startswith("__")}

    assert listed == set(kafka_eos.__all__) - on_other_pages - {"DerivedNameWarning", "agg"}


def test_every_operation_that_keeps_state_is_on_a_page_with_an_example() -> None:
    kinds = (
        kafka_eos.KeyedStream,
        kafka_eos.WindowedStream,
        kafka_eos.ConnectedStreams,
        kafka_eos.BroadcastConnectedStream,
        kafka_eos.KeyedBroadcastConnectedStream,
    )
    operations = {f"{kind.__name__}.{name}" for kind in kinds for name in _operations(kind)}
    shown = {*_EXAMPLE.findall((ROOT / "docs/api.md").read_text(encoding="utf-8"))}

    assert "KeyedStream.fold" in operations
    assert sorted(operations - shown) == []


def _operations(kind: type) -> set[str]:
    """Return the operations of a class of streams that are not those of every stream."""
    of_any = set(vars(kafka_eos.Stream)) | {name for base in kafka_eos.Stream.__mro__ for name in vars(base)}
    own = {name for base in kind.__mro__ for name, member in vars(base).items() if inspect.isfunction(member)}
    return {name for name in own - of_any if not name.startswith("_")}


@pytest.mark.campaign
def test_the_site_builds_without_a_broken_link(tmp_path: Path) -> None:
    """The builder refuses links and anchors without a target, and entries of the reference without a name."""
    built = subprocess.run(
        [sys.executable, str(ROOT / "docs/build_site.py"), str(tmp_path / "site")],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )

    assert built.returncode == 0, built.stdout + built.stderr
    assert "Return the current value of each key" in (tmp_path / "site/api.html").read_text(encoding="utf-8")


def test_the_settings_table_has_every_setting_with_its_default() -> None:
    table = rows((ROOT / "docs/configuration.md").read_text(encoding="utf-8"), "setting")
    documented = {name.strip("`"): default.strip("`") for name, default, *_ in table}

    assert documented == {name: _default(name) for name in Settings.model_fields}


def _default(name: str) -> str:
    if name == "parallelism":
        return "cores"
    default = Settings.model_fields[name].get_default(call_default_factory=True)
    return "–" if default is None else str(default)


def test_the_table_of_metrics_is_that_of_the_code() -> None:
    shown = rows((ROOT / "docs/metrics.md").read_text(encoding="utf-8"), "metric")
    known = [
        [f"`{m.full_name}`", m.kind, ", ".join(f"`{label}`" for label in m.labels) or "–", m.help]
        for m in METRICS.values()
    ]
    assert shown == known


def test_every_error_has_its_advice() -> None:
    page = ROOT / "docs/errors.md"
    documented = {cell.strip("`") for cell, *_ in rows(page.read_text(encoding="utf-8"), "error")}
    defined = {
        name
        for name, kind in vars(errors).items()
        if inspect.isclass(kind) and issubclass(kind, errors.KafkaEosError) and kind is not errors.KafkaEosError
    }

    assert documented == defined


def test_every_check_of_the_sink_contract_is_listed() -> None:
    listed = [cell.strip("`") for cell, *_ in rows((ROOT / "docs/writing-a-sink.md").read_text(), "check")]

    assert listed == list(SINK_CHECKS)


def list_optional(*contracts: type) -> set[str]:
    """The public members of the base classes that have a default."""
    return {
        name for base in contracts for name in vars(base) if name[0] != "_" and name not in base.__abstractmethods__
    }  # type: ignore[attr-defined]


def list_names(page: str, first_heading: str) -> set[str]:
    cells = [cell for cell, *_ in rows((ROOT / page).read_text(), first_heading)]
    return {name.strip("` ") for cell in cells for name in cell.split(",")}


def list_abilities(contracts: Sequence[type]) -> set[str]:
    return {ability.__name__ for contract in contracts for ability in ABILITIES[contract]}


def test_everything_that_a_sink_may_have_is_listed() -> None:
    contracts = (interfaces.Sink, interfaces.Writer, interfaces.Committer)

    assert list_names("docs/writing-a-sink.md", "optional") == list_optional(*contracts)
    assert list_names("docs/writing-a-sink.md", "class") == list_abilities(contracts)


def test_everything_that_a_source_may_have_is_listed() -> None:
    contracts = (interfaces.Source, interfaces.Reader)
    listed = list_names("docs/writing-a-source.md", "optional")

    assert listed == list_optional(*contracts) | list_abilities(contracts)


def test_every_check_of_the_source_contract_is_listed() -> None:
    listed = [cell.strip("`") for cell, *_ in rows((ROOT / "docs/writing-a-source.md").read_text(), "check")]

    assert listed == list(SOURCE_CHECKS)


def test_the_methods_that_the_walk_through_names_exist() -> None:
    """Each method is defined in one of the files that the same line links."""
    page = ROOT / "docs/checkpoint-walkthrough.md"
    missing: list[str] = []
    for line in prose(page).splitlines():
        files = [page.parent / link for link in _LINK.findall(line) if link.endswith(".py")]
        classes = [
            node for file in files for node in ast.parse(file.read_text()).body if isinstance(node, ast.ClassDef)
        ]
        known = {f"{each.name}.{part.name}" for each in classes for part in each.body if hasattr(part, "name")}
        missing += [name for name in re.findall(r"`([A-Z]\w+\.\w+)`", line) if files and name not in known]

    assert missing == []


def test_failpoints_that_pages_name_exist() -> None:
    families = {point.split(".")[0] for point in POINTS}
    pattern = re.compile(rf"`((?:{'|'.join(families)})\.[a-z.]+)(?:=|@|`)")
    named = {name for page in PAGES for name in pattern.findall(page.read_text(encoding="utf-8"))}

    assert {name for name in named if not name.endswith((".py", ".json", ".jsonl"))} <= {*POINTS}


# ---------------------------------------------------------------- examples


def python_blocks() -> list[tuple[str, str]]:
    return [(f"{page_id(page)}[{n}]", block) for page in PAGES for n, block in enumerate(blocks(page, "python"))]


@pytest.mark.parametrize("block", [b for _, b in python_blocks()], ids=[i for i, _ in python_blocks()])
def test_python_is_valid_and_what_it_imports_exists(block: str) -> None:
    tree = ast.parse(block)

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("kafka_eos"):
            module = importlib.import_module(node.module or "")
            assert [a.name for a in node.names if not hasattr(module, a.name)] == []


ORDER_TOTALS = 'Pipeline("order-totals")'


@pytest.mark.parametrize("page", [p for p in PAGES if ORDER_TOTALS in p.read_text(encoding="utf-8")], ids=page_id)
def test_the_pipeline_shown_is_the_example(page: Path) -> None:
    example = (ROOT / "docs/examples/orders.py").read_text(encoding="utf-8")
    shown = next(block for block in blocks(page, "python") if ORDER_TOTALS in block)

    assert _code(shown) == _code(example)


@pytest.mark.parametrize("what", ["sink", "source"])
def test_the_connector_shown_is_the_example(what: str) -> None:
    example = (ROOT / f"docs/examples/sqlite_{what}.py").read_text(encoding="utf-8")
    shown = next(
        block for block in blocks(ROOT / f"docs/writing-a-{what}.md", "python") if f"def test_sqlite_{what}" in block
    )

    assert _code(shown) == _code(example)


def _code(text: str) -> str:
    """The statements alone: no comments, no docstring of the module, no layout."""
    tree = ast.parse(text)
    if tree.body and ast.get_docstring(tree) is not None:
        tree.body = tree.body[1:]
    return ast.unparse(tree)


def test_the_pipeline_shown_can_be_explained(tmp_path: Path) -> None:
    """The README's block, saved as it is, loads and is exactly-once on every path."""
    shown = next(block for block in blocks(ROOT / "README.md", "python") if ORDER_TOTALS in block)
    (tmp_path / "orders.py").write_text(shown)
    command = [sys.executable, "-m", "kafka_eos", "explain", "orders.py", "-b", "localhost:9092"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert _shown_output(ROOT / "docs/getting-started.md", "operators") <= set(done.stdout.splitlines())


def _shown_output(page: Path, first: str) -> set[str]:
    """The lines of the text block that begins with ``first``."""
    return set(next(block for block in blocks(page, "text") if block.startswith(first)).splitlines())


@pytest.mark.parametrize(
    ("page", "test", "beside"),
    [
        ("docs/writing-a-sink.md", "def test_my_sink", ""),
        ("docs/writing-a-sink.md", "def test_sqlite_sink", ""),
        ("docs/writing-a-source.md", "def test_sqlite_source", ""),
        ("docs/testing.md", "def test_only_paid", "docs/examples/orders.py"),
    ],
)
def test_the_tests_shown_pass(page: str, test: str, beside: str, tmp_path: Path) -> None:
    example = next(block for block in blocks(ROOT / page, "python") if test in block)
    if beside:
        shutil.copy(ROOT / beside, tmp_path)
    (tmp_path / "test_my_sink.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_my_sink.py"]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_tables_shown_are_written(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str], database: Callable[[], str]
) -> None:
    """The pipeline of docs/postgres.md as it is, but for the places where it reads and writes."""
    purchases, totals, where = topic(2), topic(), database()
    shown, _ = blocks(ROOT / "docs/postgres.md", "python")
    for name, own in {'KafkaSource("purchases"': purchases, 'KafkaSink("totals"': totals}.items():
        shown = shown.replace(name, f'{name.partition("(")[0]}("{own}"')
    (tmp_path / "shop.py").write_text(shown.replace("host=localhost dbname=shop user=shop", where))
    producer = in_order(bootstrap)
    for user, amount in [("ann", 3), ("bob", 2), ("ann", 4), ("bob", -2)]:
        producer.produce(purchases, json.dumps({"user": user, "amount": amount}), key=user)
    assert producer.flush(PATIENCE) == 0
    given = {"bootstrap_servers": bootstrap, "checkpoint_dir": tmp_path / "checkpoints", "parallelism": 3}

    ref = AppRef(tmp_path / "shop.py")
    run(load_program(ref).plan(), ref, Settings.resolve(code=given), until_caught_up=True)

    with psycopg.connect(where) as connection:
        assert connection.execute('SELECT * FROM totals ORDER BY "user"').fetchall() == [("ann", 7)]
        assert connection.execute('SELECT "user", sum(amount) FROM purchases GROUP BY 1 ORDER BY 1').fetchall() == [
            ("ann", 7),
            ("bob", 0),
        ]
        assert connection.execute("SELECT * FROM kafka_eos.staged").fetchall() == []
    assert len(read(bootstrap, totals)) == 4


def test_the_table_shown_is_read_and_then_the_topic(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str], database: Callable[[], str]
) -> None:
    """The second pipeline of docs/postgres.md as it is, but for the places where it reads and writes."""
    purchases, out, where = topic(2), topic(1), database()
    _, shown = blocks(ROOT / "docs/postgres.md", "python")
    for name, own in {'KafkaSource("purchases"': purchases, 'KafkaSink("all-purchases"': out}.items():
        shown = shown.replace(name, f'{name.partition("(")[0]}("{own}"')
    (tmp_path / "history.py").write_text(shown.replace("host=localhost dbname=shop user=shop", where))
    with psycopg.connect(where) as connection:
        connection.execute('CREATE TABLE purchases (id bigint PRIMARY KEY, "user" text, amount bigint)')
        connection.execute("INSERT INTO purchases VALUES (2, 'bob', 2), (1, 'ann', 3), (3, 'ann', 0)")
    producer = in_order(bootstrap)
    producer.produce(purchases, json.dumps({"id": 4, "user": "ann", "amount": 9}), key="ann")
    assert producer.flush(PATIENCE) == 0
    given = {"bootstrap_servers": bootstrap, "checkpoint_dir": tmp_path / "checkpoints", "parallelism": 1}

    ref = AppRef(tmp_path / "history.py")
    run(load_program(ref).plan(), ref, Settings.resolve(code=given), until_caught_up=True)

    assert [json.loads(message.value())["id"] for message in read(bootstrap, out)] == [1, 2, 4]


def test_the_requests_shown_are_sent(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline of docs/http.md as it is, but for the places where it reads, waits and sends."""
    monkeypatch.setenv("ALERTS_TOKEN", "hush")
    payments = topic(2)
    (shown,) = blocks(ROOT / "docs/http.md", "python")
    producer = in_order(bootstrap)
    for user, amount in [("ann", 3000), ("bob", 2), ("ann", 4000)]:
        producer.produce(payments, json.dumps({"user": user, "amount": amount}), key=user)
    assert producer.flush(PATIENCE) == 0
    given = {"bootstrap_servers": bootstrap, "checkpoint_dir": tmp_path / "checkpoints", "parallelism": 1}

    with receiving() as receiver:
        shown = shown.replace('KafkaSource("payments"', f'KafkaSource("{payments}"')
        shown = shown.replace("https://example.com/alerts", receiver.url).replace("/data/alerts", str(tmp_path))
        (tmp_path / "alerts.py").write_text(shown)
        ref = AppRef(tmp_path / "alerts.py")
        run(load_program(ref).plan(), ref, Settings.resolve(code=given), until_caught_up=True)

    assert receiver.values() == [{"user": "ann", "amount": 3000}, {"user": "ann", "amount": 4000}]
    assert [*receiver.asked.values()] == [1, 1]


def test_the_calls_shown_are_made(tmp_path: Path, bootstrap: str, topic: Callable[..., str]) -> None:
    """The pipeline of docs/idempotent.md as it is, but for the places where it reads, waits and sends."""
    parcels, shipped = topic(2), dict[str, Any]()

    def ship(key: str, parcel: str) -> bool:
        if json.loads(parcel)["address"] == "nowhere":
            raise Fault(7, "there is no such place")
        shipped.setdefault(key, json.loads(parcel))
        return True

    (shown,) = blocks(ROOT / "docs/idempotent.md", "python")
    producer = in_order(bootstrap)
    for number, address in enumerate(("here", "nowhere", "there")):
        producer.produce(parcels, json.dumps({"number": number, "address": address}), key=b"one")
    assert producer.flush(PATIENCE) == 0
    given = {"bootstrap_servers": bootstrap, "checkpoint_dir": tmp_path / "checkpoints", "parallelism": 1}

    with SimpleXMLRPCServer(("127.0.0.1", 0), logRequests=False) as server:
        server.register_function(ship)
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        shown = shown.replace('KafkaSource("parcels"', f'KafkaSource("{parcels}"')
        shown = shown.replace("localhost:8000", f"127.0.0.1:{server.server_address[1]}")
        (tmp_path / "ship.py").write_text(shown.replace("/data/ship-outbox", str(tmp_path / "outbox")))
        ref = AppRef(tmp_path / "ship.py")
        run(load_program(ref).plan(), ref, Settings.resolve(code=given), until_caught_up=True)
        server.shutdown()

    assert [*shipped.values()] == [{"number": 0, "address": "here"}, {"number": 2, "address": "there"}]
    (aside,) = [path for path in (tmp_path / "outbox/refused").iterdir() if path.is_file()]
    assert "there is no such place" in aside.read_text()


def test_a_stream_is_a_table_of_another_job(tmp_path: Path, bootstrap: str, topic: Callable[..., str]) -> None:
    """The programs of docs/tables.md as they are, but for their topics: one writes upserts, the other reads them."""
    names = {name: topic(2) for name in ("payments", "balances", "orders", "decisions", "changes")}
    shown = "\n".join(blocks(ROOT / "docs/tables.md", "python")[-2:])
    for name, own in names.items():
        shown = re.sub(rf'(Kafka(?:Source|Sink)(?:\.records)?)\("{name}"', rf'\1("{own}"', shown)
    (tmp_path / "accounts.py").write_text(shown)
    settings = {"KAFKA_EOS_BOOTSTRAP_SERVERS": bootstrap, "KAFKA_EOS_CHECKPOINT_DIR": str(tmp_path / "checkpoints")}

    def written(name: str, *rows: dict[str, Any]) -> None:
        producer = in_order(bootstrap)
        for row in rows:
            producer.produce(names[name], json.dumps(row), key=row["account"])
        assert producer.flush(PATIENCE) == 0

    def run_both(**given: str) -> None:
        for pipeline in ("balances", "decisions"):
            command = [
                sys.executable,
                "-m",
                "kafka_eos",
                "run",
                f"accounts.py:{pipeline}",
                "--until-caught-up",
                "-p",
                "1",
            ]
            given |= {"KAFKA_EOS_FAILPOINT_LOG": str(tmp_path / f"{pipeline}.log")}
            while (
                done := subprocess.run(command, cwd=tmp_path, env={**os.environ, **settings, **given})
            ).returncode == -9:
                pass
            assert done.returncode == 0

    written(
        "payments", {"account": "ann", "amount": 5}, {"account": "bob", "amount": 3}, {"account": "ann", "amount": 4}
    )
    written("orders", {"account": "ann", "total": 9}, {"account": "bob", "total": 4}, {"account": "eve", "total": 1})
    run_both(KAFKA_EOS_FAILPOINTS="commit.before=kill")
    written("payments", {"account": "ann", "amount": -9}, {"account": "bob", "amount": 2})
    run_both()
    written("orders", {"account": "ann", "total": 1}, {"account": "bob", "total": 5})
    run_both()

    upserts = [
        (m.key().decode(), m.value() and json.loads(m.value())["amount"]) for m in read(bootstrap, names["balances"])
    ]
    decisions = [tuple(json.loads(m.value()).values()) for m in read(bootstrap, names["decisions"])]
    changes = [tuple(json.loads(m.value()).values()) for m in read(bootstrap, names["changes"])]
    assert sorted(upserts, key=str) == sorted([("ann", 5), ("ann", 9), ("ann", None), ("bob", 3), ("bob", 5)], key=str)
    assert sorted(decisions) == [
        ("ann", 1, False), ("ann", 9, True), ("bob", 4, False), ("bob", 5, True), ("eve", 1, False)
    ]  # fmt: skip
    assert sorted(changes) == [("ann", 1), ("ann", 2), ("ann", 3), ("bob", 1), ("bob", 2)]


@pytest.mark.parametrize("page", ["delta", "iceberg"])
def test_the_lake_table_shown_is_written(page: str, tmp_path: Path, bootstrap: str, topic: Callable[..., str]) -> None:
    """The pipeline of the page as it is, but for the places where it reads and writes."""
    sales, where = topic(2), str(tmp_path)
    shown, reading, _ = blocks(ROOT / f"docs/{page}.md", "python")
    (tmp_path / "sales.py").write_text(
        shown.replace('KafkaSource("sales"', f'KafkaSource("{sales}"').replace("/data", where)
    )
    producer = in_order(bootstrap)
    for user, amount in [("ann", 3), ("bob", 2), ("ann", 4)]:
        producer.produce(sales, json.dumps({"user": user, "amount": amount, "at": "2026-01-31T12:00:00Z"}))
    assert producer.flush(PATIENCE) == 0
    given = {"bootstrap_servers": bootstrap, "checkpoint_dir": tmp_path / "checkpoints", "parallelism": 2}

    ref = AppRef(tmp_path / "sales.py")
    run(load_program(ref).plan(), ref, Settings.resolve(code=given), until_caught_up=True)

    names: dict[str, Any] = {}
    exec(reading.replace("/data", where), names)
    rows = names["table"].to_pylist()
    assert sorted((row["user"], row["amount"]) for row in rows) == [("ann", 3), ("ann", 4), ("bob", 2)]
    assert {row["at"].isoformat() for row in rows} == {"2026-01-31T12:00:00+00:00"}


@pytest.mark.parametrize("page", ["delta", "iceberg"])
def test_the_lake_table_with_a_key_shown_is_written(
    page: str, tmp_path: Path, bootstrap: str, topic: Callable[..., str]
) -> None:
    balances, where = topic(2), str(tmp_path)
    *_, shown = blocks(ROOT / f"docs/{page}.md", "python")
    (tmp_path / "balances.py").write_text(
        shown.replace('KafkaSource("balances"', f'KafkaSource("{balances}"').replace("/data", where)
    )
    producer = in_order(bootstrap)
    for user, amount in [("ann", 3), ("bob", 2), ("ann", 4), ("bob", 0)]:
        producer.produce(balances, json.dumps({"user": user, "amount": amount}), key=user)
    assert producer.flush(PATIENCE) == 0
    given = {"bootstrap_servers": bootstrap, "checkpoint_dir": tmp_path / "checkpoints", "parallelism": 2}

    ref = AppRef(tmp_path / "balances.py")
    run(load_program(ref).plan(), ref, Settings.resolve(code=given), until_caught_up=True)

    if page == "delta":
        rows = DeltaTable(f"{where}/balances").to_pyarrow_table().to_pylist()
    else:
        properties = {"type": "sql", "uri": f"sqlite:///{where}/catalog.db"}
        rows = load_catalog("default", **properties).load_table("shop.balances").scan().to_arrow().to_pylist()
    assert rows == [{"user": "ann", "amount": 4}]


def test_the_avro_shown_is_read_and_written(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str], registry: RegistryServer
) -> None:
    """The pipeline of docs/schemas.md as it is, but for the places where it reads and writes."""
    orders, totals, refused = topic(), topic(), topic()
    shown = blocks(ROOT / "docs/schemas.md", "python")[0]
    own = {'KafkaSource("orders"': f'KafkaSource("{orders}"', 'KafkaSink("totals"': f'KafkaSink("{totals}"',
           '"orders-refused"': f'"{refused}"', "http://localhost:8081": registry.url}  # fmt: skip
    for name, other in own.items():
        assert name in shown
        shown = shown.replace(name, other)
    (tmp_path / "totals.py").write_text(shown)
    placed = {"type": "long", "logicalType": "timestamp-millis"}
    old = avro_witness.record("com.shop.Placed", placed=placed, amount="int", user="string")
    new = avro_witness.record(
        "com.shop.Placed", user="string", amount="long", placed=placed, currency=("string", "EUR")
    )
    values = [{"user": user, "amount": amount, "placed": 1} for user, amount in [("ann", 3), ("bob", 2), ("ann", 4)]]
    for schema, more in ((old, {}), (new, {"currency": "SEK"})):
        written = avro_witness.written(registry.url, orders, schema, [{**value, **more} for value in values])
        avro_witness.send(bootstrap, orders, written)
    avro_witness.send(bootstrap, orders, [b"not avro"])
    given = {"bootstrap_servers": bootstrap, "checkpoint_dir": tmp_path / "checkpoints", "parallelism": 1}

    ref = AppRef(tmp_path / "totals.py")
    run(load_program(ref).plan(), ref, Settings.resolve(code=given), until_caught_up=True)

    found = [avro_witness.told(registry.url, message.value()) for message in read(bootstrap, totals)]
    assert sorted((row["user"], row["total"]) for row in found) == [
        ("ann", 3), ("ann", 7), ("ann", 10), ("ann", 14), ("bob", 2), ("bob", 4)
    ]  # fmt: skip
    assert [message.value() for message in read(bootstrap, refused)] == [b"not avro"]


def test_a_job_reads_avro_and_writes_protobuf_with_few_lines_more_than_in_json(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str], registry: RegistryServer
) -> None:
    """The second pipeline of docs/schemas.md as it is; in JSON it would be the one of the first pages."""
    orders, totals = topic(), topic()
    page = ROOT / "docs/schemas.md"
    (proto,), shown = blocks(page, "proto"), blocks(page, "python")[1]
    in_json = shown.replace(", protobuf", "").replace("protobuf(Total, registry=registry, auto_register=True)", "Total")
    in_json = in_json.replace("avro(Order, registry=registry)", "Order")
    more = [line for line in in_json.splitlines() if "registry" in line.lower() or "_pb2" in line]
    assert len(more) <= 5
    own = {'KafkaSource("orders"': f'KafkaSource("{orders}"', 'KafkaSink("totals"': f'KafkaSink("{totals}"',
           "http://localhost:8081": registry.url}  # fmt: skip
    for name, other in own.items():
        assert name in shown
        shown = shown.replace(name, other)
    (tmp_path / "totals_in_protobuf.py").write_text(shown)
    (tmp_path / "shop_pb2.py").write_text(protobuf_witness.generated(proto))
    schema = avro_witness.record("com.shop.Placed", amount="int", user="string", currency="string")
    values = [
        {"user": user, "amount": amount, "currency": "EUR"} for user, amount in [("ann", 3), ("bob", 2), ("ann", 4)]
    ]
    avro_witness.send(bootstrap, orders, avro_witness.written(registry.url, orders, schema, values))
    given = {"bootstrap_servers": bootstrap, "checkpoint_dir": tmp_path / "checkpoints", "parallelism": 2}

    ref = AppRef(tmp_path / "totals_in_protobuf.py")
    run(load_program(ref).plan(), ref, Settings.resolve(code=given), until_caught_up=True)

    tp = protobuf_witness.classes(proto)["Total"]
    found = [protobuf_witness.told(tp, message.value()) for message in read(bootstrap, totals)]
    assert sorted((row.user, row.total) for row in found) == [("ann", 3), ("ann", 7), ("bob", 2)]


def test_the_avro_without_a_registry_shown_is_read_and_written() -> None:
    """The fifth pipeline of docs/schemas.md as it is."""
    (shown,) = (block for block in blocks(ROOT / "docs/schemas.md", "python") if "plain_avro.py" in block)
    module: dict[str, Any] = {}
    exec(shown, module)
    theirs, order = module["THEIRS"], {"user": "ann", "amount": 3}
    written = io.BytesIO()
    fastavro.schemaless_writer(written, theirs, order)
    record = RawRecord("orders", 0, 0, 1, None, written.getvalue(), ())

    (out,) = run_local(module["pipeline"], {"orders": [record]}).written["paid"]

    own = {**theirs, "fields": [{"name": "user", "type": "string"}, {"name": "amount", "type": "long"}]}
    assert fastavro.schemaless_reader(io.BytesIO(out.value), own, None) == order
    with pytest.raises(errors.PoisonRecord, match="not a valid Order"):
        run_local(module["pipeline"], {"orders": [replace(record, value=record.value[:-1])]})


def test_the_json_and_the_references_shown_are_written(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str], registry: RegistryServer
) -> None:
    """The third and fourth pipeline of docs/schemas.md as they are, but for the places where they read and write."""
    orders, paid, priced, plain = topic(), topic(), topic(), topic()
    *_, in_json, referring = blocks(ROOT / "docs/schemas.md", "python")[:4]
    shop = {"title": "Order", "type": "object", "properties": {"user": {"type": "string"}, "shop": {"type": "string"},
                                                               "amount": {"type": "integer"}}}  # fmt: skip
    values = [{"user": "ann", "amount": amount, "shop": "x"} for amount in (3, 0, 4)]
    avro_witness.send(bootstrap, orders, json_witness.written(registry.url, orders, shop, values))
    avro_witness.send(bootstrap, plain, [b'{"user": "ann", "price": {"cents": 5}}'])
    given = {"bootstrap_servers": bootstrap, "checkpoint_dir": tmp_path / "checkpoints", "parallelism": 1}
    for name, shown, reads, sink, writes in (
        ("in_json", in_json, orders, "paid", paid),
        ("referring", referring, plain, "priced", priced),
    ):
        for place, own in (('KafkaSource("orders"', f'KafkaSource("{reads}"'), ("http://localhost:8081", registry.url),
                           (f'"{sink}",', f'"{writes}",')):  # fmt: skip
            assert place in shown
            shown = shown.replace(place, own, 1)
        (tmp_path / f"{name}.py").write_text(shown)
        ref = AppRef(tmp_path / f"{name}.py")
        run(load_program(ref).plan(), ref, Settings.resolve(code=given), until_caught_up=True)

    found = [json_witness.told(registry.url, paid, message.value()) for message in read(bootstrap, paid)]
    assert found == [{"user": "ann", "amount": amount, "currency": "EUR"} for amount in (3, 4)]
    (message,) = read(bootstrap, priced)
    assert avro_witness.told(registry.url, message.value()) == {"user": "ann", "price": {"cents": 5, "currency": "EUR"}}
    newest = Registry(registry.url).get_latest_version(f"{priced}-value")
    assert newest is not None
    assert [each.subject for each in newest.schema.references] == ["com.shop.Money"]


def test_the_files_shown_are_written_and_read_as_shown(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str]
) -> None:
    """The pipeline of docs/files.md as it is, but for the places where it reads and writes."""
    purchases, lake = topic(2), tmp_path / "lake"
    shown, reading, *_ = (
        code.replace("/data/lake", str(lake)).replace('KafkaSource("purchases"', f'KafkaSource("{purchases}"')
        for code in blocks(ROOT / "docs/files.md", "python")
    )
    (tmp_path / "lake.py").write_text(shown)
    producer = in_order(bootstrap)
    for day, amount in [(30, 3), (31, 2), (31, 4)]:
        producer.produce(
            purchases, json.dumps({"user": "ann", "amount": amount, "at": f"2026-01-{day}T12:00:00Z"}), key="ann"
        )
    assert producer.flush(PATIENCE) == 0
    given = {"bootstrap_servers": bootstrap, "checkpoint_dir": tmp_path / "checkpoints", "parallelism": 1}

    ref = AppRef(tmp_path / "lake.py")
    run(load_program(ref).plan(), ref, Settings.resolve(code=given), until_caught_up=True)
    (tmp_path / "reading.py").write_text(reading)
    table = runpy.run_path(str(tmp_path / "reading.py"))["table"]

    found = zip(map(str, table["day"].to_pylist()), table["amount"].to_pylist(), strict=True)
    assert sorted(found) == [("2026-01-30", 3), ("2026-01-31", 2), ("2026-01-31", 4)]
    (told,) = (lake / "_epochs").iterdir()
    assert sum(file["rows"] for file in json.loads(told.read_text())["files"]) == 3


def test_the_files_shown_as_a_source_are_read_as_shown(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str]
) -> None:
    """The third program of docs/files.md as it is, but for the places where it reads and writes."""
    purchases = topic(2)
    shown = blocks(ROOT / "docs/files.md", "python")[2].replace("/data/purchases", str(tmp_path / "purchases"))
    rows = [{"user": user, "amount": amount} for user, amount in [("ann", 3), ("bob", 2), ("ann", 4)]]

    _backfilled(tmp_path, shown.replace('KafkaSink("purchases"', f'KafkaSink("{purchases}"'), rows, bootstrap)

    found = [json.loads(message.value()) for message in read(bootstrap, purchases)]
    assert sorted(found, key=lambda row: row["amount"]) == sorted(rows, key=lambda row: row["amount"])


def test_the_backfill_shown_reads_files_and_then_the_topic(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str]
) -> None:
    """The pipeline of docs/backfill.md as it is, but for places and the day of its cut."""
    orders, totals = topic(1), topic(1)
    day = datetime.datetime.now(datetime.UTC).replace(hour=0, minute=0, second=0) - datetime.timedelta(days=4)
    (shown,) = blocks(ROOT / "docs/backfill.md", "python")
    shown = shown.replace("/data/orders", str(tmp_path / "purchases")).replace("2026, 3, 1,", "2020, 3, 1,")
    shown = shown.replace('KafkaSource("orders"', f'KafkaSource("{orders}"')
    shown = shown.replace('KafkaSink("totals"', f'KafkaSink("{totals}"')
    hours = [day + datetime.timedelta(hours=hour) for hour in (-30, -2, 1, 30)]
    producer = in_order(bootstrap)
    for hour, amount in zip(hours[2:], (4, 8), strict=True):
        producer.produce(orders, msgspec.json.encode({"user": "ann", "amount": amount, "at": hour}), key="ann")
    assert producer.flush(PATIENCE) == 0
    rows = [{"user": "ann", "amount": amount, "at": hour} for hour, amount in zip(hours, (1, 2), strict=False)]

    _backfilled(tmp_path, shown, rows, bootstrap)

    found = [json.loads(message.value()) for message in read(bootstrap, totals)]
    assert [row["value"] for row in found] == [1, 2, 4]


def _backfilled(tmp_path: Path, shown: str, rows: list[dict[str, Any]], bootstrap: str) -> None:
    """Run a pipeline that reads these rows from a Parquet file first."""
    (tmp_path / "purchases").mkdir()
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "purchases" / "part-1.parquet")
    (tmp_path / "shown.py").write_text(shown)
    given = {"bootstrap_servers": bootstrap, "checkpoint_dir": tmp_path / "checkpoints", "parallelism": 1}
    ref = AppRef(tmp_path / "shown.py")
    run(load_program(ref).plan(), ref, Settings.resolve(code=given), until_caught_up=True)


def test_the_process_function_shown_runs(tmp_path: Path) -> None:
    (tmp_path / "sessions.py").write_text(blocks(ROOT / "docs/state.md", "python")[0])
    pipeline = load_program(AppRef(tmp_path / "sessions.py"))
    click = pipeline.plan().sources[0].source.value_type

    out = run_local(pipeline, {"clicks": [click(user=user, page="/a") for user in ("ann", "bob", "ann")]})

    assert out["stays"] == ["ann stays at /a: ['/a', '/a'], {'/a': 2}, 2.0"]


def test_the_reduce_shown_gives_the_table_shown(tmp_path: Path) -> None:
    page = ROOT / "docs/state.md"
    process, reduce = blocks(page, "python")[:2]
    pipeline = _shown(tmp_path, process.partition("pipeline = ")[0] + reduce)
    click = pipeline.plan().sources[0].source.value_type
    lines = re.findall(r"^\| (\w+), (/\w+) \| (\w+, /\w+) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)

    out = run_local(pipeline, {"clicks": [click(user=user, page=shown) for user, shown, _ in lines]})

    assert len(lines) == 4
    assert [f"{row.user}, {row.page}" for row in out["to-longest"]] == [after for *_, after in lines]


NOON = 1_699_963_200_000


def test_the_windows_shown_give_the_table_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs/event-time.md").read_text(encoding="utf-8").partition("## Side outputs")[0]
    given = re.findall(r"^\| (\w+), (\d) \| 12:(\d\d):(\d\d) \|", page, re.MULTILINE)
    sales = [(user, int(amount), int(m) * 60 + int(s)) for user, amount, m, s in given]

    out = _timed(tmp_path, blocks(ROOT / "docs/event-time.md", "python")[0], sales)

    totals = [(total.user, (total.until - NOON) // 60_000, total.total) for total in out["to-kafka"]]
    assert totals == [("ann", 5, 7), ("bob", 5, 5), ("ann", 10, 1)]
    shown = re.findall(r"`(\w+) until 12:(\d\d): (\d)`", page)
    assert totals == [(user, int(minute), int(total)) for user, minute, total in shown]
    assert out["sales-dead-letters"] == []


def test_a_late_row_of_the_windows_shown_goes_to_the_dead_letters(tmp_path: Path) -> None:
    sales = [("ann", 3, 0), ("ann", 1, 400), ("ann", 9, 10), ("ann", 7, 299)]

    out = _timed(tmp_path, blocks(ROOT / "docs/event-time.md", "python")[0], sales)

    assert [total.total for total in out["to-kafka"]] == [3]
    assert ["late: the window" in each.message for each in out["sales-dead-letters"]] == [True, True]


def test_the_strategy_shown_gives_the_table_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs/event-time.md").read_text(encoding="utf-8").partition("`generated(…)`")[2]
    windows, strategy, *_ = blocks(ROOT / "docs/event-time.md", "python")
    shown = re.findall(r"^\| (\w+), (\d) \| 12:(\d\d) \| (?:12:(\d\d)|unknown) \|$", page, re.MULTILINE)
    before, _ = windows.split("pipeline = ")
    (tmp_path / "strategy.py").write_text(f"{before}{strategy}")
    code = runpy.run_path(str(tmp_path / "strategy.py"))
    sale, generator = code["Sale"], code["marked"].generator

    known, found = None, []
    for user, amount, minute, _ in shown:
        known = generator.on_event(known, sale(user=user, amount=int(amount)), int(minute))
        found.append(generator.watermark(known))

    assert found == [None, 3, 3, 8] == [int(minute) if minute else None for *_, minute in shown]


def test_the_timer_of_the_clock_shown_gives_the_table_shown(tmp_path: Path) -> None:
    text = (ROOT / "docs/event-time.md").read_text(encoding="utf-8")
    page = text.partition("### Processing-time timers")[2].partition("| | event time |")[0]
    windows, _, pause, *_ = blocks(ROOT / "docs/event-time.md", "python")
    before, after = windows.split("pipeline = ")
    shown = after.replace(".process(FiveMinutes", ".process(Pause").replace("value=Total", "value=str")
    shown = shown.replace("lambda total: total.user", "str")
    (tmp_path / "shown.py").write_text(f"{before}{pause}\npipeline = {shown}")
    pipeline = load_program(AppRef(tmp_path / "shown.py"))
    sale = pipeline.plan().sources[0].source.value_type

    given: list[Any] = []
    for waits, user, amount in re.findall(r"^\| (?:\*(\d+) s later\*)? ?(?:(\w+), (\d))? \|", page, re.MULTILINE):
        given += [AdvanceClock(int(waits))] if waits else []
        given += [TimestampedValue(sale(user=user, amount=int(amount)), NOON)] if user else []
    out = run_local(pipeline, {"sales": given})

    assert len(given) == 6
    assert out["to-kafka"] == re.findall(r"^\| \*.* \| `(.*)` \|$", page, re.MULTILINE) == ["bob pauses", "ann pauses"]


def test_the_alignment_shown_gives_the_table_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs/event-time.md").read_text(encoding="utf-8").partition("## Watermark alignment")[2]
    shown_code = blocks(ROOT / "docs/event-time.md", "python")[-3]
    (tmp_path / "shown.py").write_text(f"from kafka_eos import bounded\n{shown_code}")
    alignment = runpy.run_path(str(tmp_path / "shown.py"))["together"].alignment
    rows = re.findall(r"^\| ([\w:]+.*) \| (no row yet|\d\d:\d\d:\d\d) \| (is read|waits) \|$", page, re.MULTILINE)

    assert len(rows) == 6
    for slow, other, shown in rows:
        standings = {"other": SplitProgress(_moment(other), idle=False)}
        waits = find_splits_ahead(standings, _moment(slow), alignment.max_drift)
        assert shown == ("waits" if waits else "is read"), (slow, other)


def _moment(shown: str) -> int:
    if not shown[0].isdigit():
        return {"no row yet": MIN_EVENT_TIME, "no partition counts": NO_SPLIT}[shown]
    hours, minutes, seconds = map(int, shown.split(":"))
    return 1000 * (3600 * hours + 60 * minutes + seconds)


def test_the_silence_shown_gives_the_table_shown(tmp_path: Path) -> None:
    text = (ROOT / "docs/event-time.md").read_text(encoding="utf-8")
    page = text.partition("## When all partitions are idle")[2].partition("## In tests")[0]
    windows, *_, strategy = blocks(ROOT / "docs/event-time.md", "python")
    _, _, of_silence = strategy.strip().partition(" = ")
    shown = windows.replace("bounded(seconds=60)", of_silence)
    (tmp_path / "shown.py").write_text(shown)
    pipeline = load_program(AppRef(tmp_path / "shown.py"))
    sale = pipeline.plan().sources[0].source.value_type

    given: list[Any] = []
    for user, amount, minute, waits in re.findall(
        r"^\| (?:(\w+), (\d) \| 12:(\d\d)|\*(\d+) s later\* \|) \|", page, re.MULTILINE
    ):
        given.append(
            AdvanceClock(int(waits))
            if waits
            else TimestampedValue(sale(user=user, amount=int(amount)), NOON + int(minute) * 60_000)
        )
    totals = run_local(pipeline, {"sales": given})["to-kafka"]

    assert [type(each) for each in given] == [TimestampedValue, TimestampedValue, AdvanceClock, AdvanceClock]
    assert run_local(pipeline, {"sales": given[:3]})["to-kafka"] == []
    assert shown != windows
    assert [f"{total.user} until 12:05: {total.total}" for total in totals] == re.findall(r"`(\w+ until .*?)`", page)


def test_the_idle_partition_shown_gives_the_table_shown(tmp_path: Path) -> None:
    text = (ROOT / "docs/event-time.md").read_text(encoding="utf-8")
    page = text.partition("## Idle partitions")[2].partition("## When all partitions are idle")[0]
    windows, *_, strategy, _ = blocks(ROOT / "docs/event-time.md", "python")
    pipeline = _shown(tmp_path, windows.replace("bounded(seconds=60)", strategy.strip().partition(" = ")[2]))
    lines, given = rows(page, "sale"), list[Any]()
    for offset, (sale, partition, at, _) in enumerate(lines):
        if waits := re.fullmatch(r"\*(\d+) s later\*", sale):
            given.append(AdvanceClock(int(waits[1])))
            continue
        user, amount = sale.split(", ")
        value = msgspec.json.encode({"user": user, "amount": int(amount)})
        at_ms = NOON + 60_000 * _after_noon(at)
        given.append(RawRecord("sales", int(partition), offset, at_ms, None, value, ()))

    so_far: list[list[str]] = []
    for n in range(len(given) + 1):
        out = run_local(pipeline, {"sales": given[:n]}, batch_size=1)
        made = [f"`{t.user} until 12:{(t.until - NOON) // 60_000:02}: {t.total}`" for t in out["to-kafka"]]
        late = [letter.message.replace(str(NOON + 300_000), "12:05") for letter in out["sales-dead-letters"]]
        so_far.append([*made, *(f"refused: `{each}`" for each in late)])

    assert [", ".join(after[len(before) :]) for before, after in pairwise(so_far)] == [made for *_, made in lines]


def test_the_side_output_shown_gives_the_table_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs/event-time.md").read_text(encoding="utf-8")
    windows, *_, sides, _, _, _ = blocks(ROOT / "docs/event-time.md", "python")
    shown = re.findall(r"^\| (\w+), (\d) \| 12:(\d\d) \| (.*) \| (.*) \|$", page, re.MULTILINE)
    sales = [(user, int(amount), int(minute) * 60) for user, amount, minute, *_ in shown]

    out = _timed(tmp_path, f"{windows.partition('pipeline = ')[0]}\n{sides}", sales)

    made = [f"`{t.user} until 12:{(t.until - NOON) // 60_000:02}: {t.total}`" for t in out["to-kafka"]]
    assert made == [total for *_, total, _ in shown if total]
    assert [f"`{sale.user}, {sale.amount}`" for sale in out["late"]] == [late for *_, late in shown if late]


EXPIRING = """
from pydantic import BaseModel
from kafka_eos import Pipeline, Ttl
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource

class Payment(BaseModel):
    user: str
    amount: int

def add(total: int, payment: Payment) -> int:
    return total + payment.amount

pipeline = Pipeline("expiring")
payments = pipeline.source(KafkaSource("payments", value=Payment), name="sales")
payments.key_by(lambda payment: payment.user){verb}.sink(KafkaSink("totals", value=tuple[str, int]), name="to-kafka")
"""


@pytest.mark.parametrize("batch_size", [1, 10])
def test_the_alert_shown_says_the_same_wherever_reads_end(tmp_path: Path, batch_size: int) -> None:
    page = (ROOT / "docs/event-time.md").read_text(encoding="utf-8").partition("class Silence")[2]
    windows, _, _, silence, *_ = blocks(ROOT / "docs/event-time.md", "python")
    shown = windows.replace(".process(FiveMinutes", ".process(Silence").replace("value=Total", "value=str")
    before, after = shown.replace("lambda total: total.user", "str").split("pipeline = ")
    lines = rows(page, "sale")
    sales = [(sale.split(", ")[0], int(sale.split(", ")[1]), 60 * _after_noon(at)) for sale, at, _ in lines]

    out = _timed(tmp_path, f"{before}\n{silence}\npipeline = {after}", sales, batch_size)

    told = [
        re.sub(r"\d\d:\d\d", lambda at: str(NOON + 60_000 * _after_noon(at[0])), said) for *_, said in lines if said
    ]
    assert len(told) == 2
    assert out["to-kafka"] == told


def test_the_total_that_expires_gives_the_table_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs/state.md").read_text(encoding="utf-8")
    (verb,) = re.findall(r"^payments\.key_by\(account\)(\.fold\(.*\))$", page, re.MULTILINE)
    lines = rows(page, "account, amount")
    payments = [(paid.split(", ")[0], int(paid.split(", ")[1]), 60 * _after_noon(at)) for paid, at, _ in lines]

    out = _timed(tmp_path, EXPIRING.format(verb=verb), payments)

    assert [f"{account}, {total}" for account, total in out["to-kafka"]] == [made for *_, made in lines]


def test_the_aggregates_shown_give_the_table_shown(tmp_path: Path) -> None:
    page = (ROOT / "docs/aggregates.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| (\w+), (\w+), ([\d.]+) \| 12:(\d\d) \| (.*) \|$", page, re.MULTILINE)
    pipeline = _shown(tmp_path, blocks(ROOT / "docs/aggregates.md", "python")[0])
    purchase = pipeline.plan().sources[0].source.value_type
    given = [
        TimestampedValue(purchase(user=user, item=item, price=float(price)), NOON + int(minute) * 60_000)
        for user, item, price, minute, _ in lines
    ]

    written = run_local(pipeline, {"purchases": given}).written["to-kafka"]

    rows = [json.loads(record.value or b"") for record in written]
    assert [" | ".join(map(str, row.values())) for row in rows] == [shown for *_, shown in lines]
    assert list(rows[0]) == ["user", "count", "total", "average", "dearest", "latest"]


def test_the_aggregate_of_your_own_counts_what_is_different(tmp_path: Path) -> None:
    pipeline_shown, own = blocks(ROOT / "docs/aggregates.md", "python")
    before, after = pipeline_shown.split("pipeline = ")
    after = after.replace("agg.count(),", "Distinct(), merge=True,")
    pipeline = _shown(tmp_path, f"{before}\n{own}\npipeline = {after}")
    purchase = pipeline.plan().sources[0].source.value_type
    given = [TimestampedValue(purchase(user="ann", item=item, price=1.0), NOON) for item in ("tea", "cup", "tea")]

    assert [row.items for row in run_local(pipeline, {"purchases": given})["to-kafka"]] == [2]


def test_the_rules_shown_are_those_of_the_example() -> None:
    page, example = (ROOT / "docs/state-machine.md").read_text(), (ROOT / "docs/examples/state_machine.py").read_text()
    (shown,) = blocks(ROOT / "docs/state-machine.md", "python")
    rules = re.findall(r"^\| ([a-z]+) \| ([a-z ]+) \| ([a-z]+) \|$", page, re.MULTILINE)

    assert shown in example
    assert {(state, step): after for state, step, after in rules if state != "state"} == state_machine.RULES


TIMED = [
    section
    for section in (ROOT / "docs/cookbook.md").read_text(encoding="utf-8").split("\n## ")
    if " | at | output |\n" in section
]


@pytest.mark.parametrize("section", TIMED, ids=[section.partition("\n")[0] for section in TIMED])
def test_each_program_of_the_cookbook_gives_what_its_table_shows(section: str, tmp_path: Path) -> None:
    """A row of a table is a record: the fields of its value, its time, and the outputs that it brings.

    With several sinks, each output has the name of its sink.
    """
    ((_, code),) = _FENCE.findall(section)
    rows_shown = re.findall(r"^\| ([^|]+) \| (\d\d):(\d\d) \| ([^|]*)\|$", section, re.MULTILINE)
    pipeline = _shown(tmp_path, code)
    (source,) = pipeline.plan().sources
    tp = source.source.value_type
    given = [
        TimestampedValue(
            tp(**dict(zip(tp.model_fields, said.split(", "), strict=True))), NOON + _minutes(hour, minute) * 60_000
        )
        for said, hour, minute, _ in rows_shown
    ]
    shown = [line.strip() for *_, out in rows_shown for line in out.split(";") if line.strip()]

    found = run_local(pipeline, {source.name: given}, batch_size=1)

    for sink, rows in found.items():
        wanted = shown if len(found) == 1 else [out.removeprefix(f"{sink}: ") for out in shown if out.startswith(sink)]
        assert [row if isinstance(row, str) else ", ".join(map(str, _fields(row))) for row in rows] == wanted


def _after_noon(time: str) -> int:
    """Minutes of a time of the day, such as 12:05."""
    return _minutes(*time.split(":"))


def _minutes(hour: str, minute: str) -> int:
    return (int(hour) - 12) * 60 + int(minute)


def _fields(row: Any) -> list[Any]:
    return list(row.model_dump().values()) if hasattr(row, "model_dump") else list(msgspec.structs.astuple(row))


def _shown(directory: Path, code: str) -> Any:
    (directory / "shown.py").write_text(code)
    return load_program(AppRef(directory / "shown.py"))


def _timed(directory: Path, code: str, sales: list[tuple[str, int, int]], batch_size: int = 1) -> dict[str, list[Any]]:
    """What a pipeline of sales makes of some, each with seconds after noon."""
    pipeline = _shown(directory, code)
    sale = pipeline.plan().sources[0].source.value_type
    given = [TimestampedValue(sale(user=user, amount=amount), NOON + second * 1000) for user, amount, second in sales]
    return run_local(pipeline, {"sales": given}, batch_size=batch_size)


@pytest.mark.slow
def test_getting_started_works_as_written(tmp_path: Path, broker_factory: Callable[..., Broker]) -> None:
    """Feed, run, kill -9, doctor, run again, doctor: with the files of the page and a broker of its own."""
    scripts = blocks(ROOT / "docs/getting-started.md", "python")
    for name, script in zip(("feed.py", "orders.py"), scripts, strict=False):
        (tmp_path / name).write_text(script)
    walk = Walk(tmp_path, broker_factory().bootstrap)
    assert walk.call("broker", "topic", "create", "orders", "totals", "--partitions", "4") == 0
    with walk.started(sys.executable, "feed.py", walk.bootstrap), walk.started(*KAFKA_EOS, "run", "orders.py"):
        walk.until(lambda: walk.committed() >= 2, "the job commits")
        os.kill(int((walk.job / "lock").read_text()), signal.SIGKILL)
    walk.until(lambda: walk.call("doctor", "orders.py") == 1, "what was killed is still open")

    assert walk.call("run", "orders.py", "--until-caught-up") == 0
    assert walk.call("doctor", "orders.py") == 0
    assert walk.call("checkpoints", "verify", "order-totals") == 0


KAFKA_EOS = (sys.executable, "-m", "kafka_eos")


@dataclass(frozen=True)
class Walk:
    """A user's terminal: a directory, and the broker in the environment."""

    directory: Path
    bootstrap: str

    @property
    def job(self) -> Path:
        return self.directory / ".kafka-eos/order-totals"

    @contextmanager
    def started(self, *command: str) -> Iterator[None]:
        """Run a command in the background; it is ended on the way out, if it has not ended before."""
        process = subprocess.Popen(command, cwd=self.directory, env=self._environment())
        try:
            yield
        finally:
            process.kill()
            process.wait()

    def call(self, *arguments: str) -> int:
        """The exit code of ``kafka-eos arguments``."""
        command = [*KAFKA_EOS, *arguments]
        return subprocess.run(
            command, cwd=self.directory, env=self._environment(), check=False, timeout=PATIENCE
        ).returncode

    def committed(self) -> int:
        status = read_status(self.job) or {}
        counts = status.get("counts", {})
        assert isinstance(counts, dict)
        return int(counts.get("committed", 0))

    def until(self, condition: Callable[[], bool], what: str, seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {what}"
            time.sleep(0.05)

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "KAFKA_EOS_BOOTSTRAP_SERVERS": self.bootstrap}


# ---------------------------------------------------------------- links and leftovers


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_relative_link_resolves(page: Path) -> None:
    text = re.sub(r"`[^`\n]*`", "", prose(page))  # code such as bucket[16](user) is no link

    broken = [link for link in _LINK.findall(text) if not _resolves(page, link)]

    assert broken == []


def _resolves(page: Path, link: str) -> bool:
    if re.match(r"[a-z]+:", link):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.exists() or not target.is_relative_to(ROOT):
        return False
    return not anchor or anchor in _anchors(target)


def _anchors(page: Path) -> set[str]:
    """Headings as GitHub turns them into anchors, and entries of the reference as the site does."""
    headings = re.findall(r"^#+ +(.+)$", prose(page), re.MULTILINE)
    entries = re.findall(r"^::: (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings} | {*entries}


def test_every_decision_has_a_status_and_those_that_are_replaced_name_the_new_one() -> None:
    for decision in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        status = re.search(r"^\*\*Status\.\*\* (.+)$", decision.read_text(), re.MULTILINE)

        assert status is not None, decision.name
        assert status[1].startswith("In force") or re.match(r"Replaced by \[decision \d+\]\(", status[1]), decision.name


CONNECTORS = {
    "kafka": ("kafka-sinks", "kafka-sources"), "files": ("files",), "postgres": ("postgres",), "delta": ("delta",),
    "dbapi": ("writing-a-sink",), "iceberg": ("iceberg",), "http": ("http",), "idempotent": ("idempotent",),
}  # fmt: skip


def test_every_connector_has_a_page() -> None:
    packages = (ROOT / "connectors").glob("*/__init__.py")
    public = {each.parent.name for each in packages if re.search(r'"\w+(Sink|Source)"', each.read_text())}

    assert public == CONNECTORS.keys()


@pytest.mark.parametrize("page", [page for pages in CONNECTORS.values() for page in pages])
def test_a_page_of_a_connector_says_what_it_guarantees_under_which_conditions_and_what_faults_do(page: str) -> None:
    path = ROOT / f"docs/{page}.md"
    text = path.read_text(encoding="utf-8")

    assert re.search(r"exactly[ -]once|effectively once", text)
    assert {len(row) for row in rows(text, "condition")} == {2}
    assert {len(row) for row in rows(text, "fault")} == {2}
    assert blocks(path, "python")


def test_the_pipeline_with_a_sink_of_kafka_writes_as_shown(
    tmp_path: Path, bootstrap: str, topic: Callable[..., str]
) -> None:
    """The pipeline of docs/kafka-sinks.md as it is, but for its topics."""
    orders, invoices = topic(2), topic(2)
    (shown,) = blocks(ROOT / "docs/kafka-sinks.md", "python")
    shown = shown.replace('KafkaSource("orders"', f'KafkaSource("{orders}"').replace("3 * 3600", "600")
    (tmp_path / "invoices.py").write_text(shown.replace('"invoices",\n        value', f'"{invoices}",\n        value'))
    producer = in_order(bootstrap)
    for amount in (3, 2):
        producer.produce(orders, json.dumps({"user": "ann", "amount": amount}), key="ann")
    assert producer.flush(PATIENCE) == 0
    given = {"bootstrap_servers": bootstrap, "checkpoint_dir": tmp_path / "checkpoints", "parallelism": 1}

    ref = AppRef(tmp_path / "invoices.py")
    run(load_program(ref).plan(), ref, Settings.resolve(code=given), until_caught_up=True)

    found = read(bootstrap, invoices)
    assert [(each.key(), json.loads(each.value())["cents"]) for each in found] == [(b"ann", 300), (b"ann", 200)]
    assert [dict(each.headers())["currency"] for each in found] == [b"EUR", b"EUR"]


def test_every_page_is_linked_from_another() -> None:
    linked = {
        (page.parent / link.partition("#")[0]).resolve()
        for page in PAGES
        for link in _LINK.findall(prose(page))
        if not re.match(r"[a-z]+:", link)
    }
    directories = {path for path in linked if path.is_dir()}
    lonely = [
        page_id(page)
        for page in PAGES
        if page.name != "README.md" and page not in linked and page.parent not in directories
    ]

    assert lonely == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_nothing_is_left_to_be_written(page: Path) -> None:
    text = page.read_text(encoding="utf-8")

    assert re.findall(r"\b(?:TODO|FIXME|TBD|XXX|lorem ipsum|coming soon)\b", text, re.IGNORECASE) == []
    assert text.endswith("\n") and not text.endswith("\n\n")
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_make_targets_that_pages_name_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    text = page.read_text(encoding="utf-8")
    named = set(re.findall(r"`make ([a-z-]+)`", text))
    named |= {t for lang in ("sh", "bash") for b in blocks(page, lang) for t in re.findall(r"^make ([a-z-]+)", b, re.M)}

    assert named <= targets


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
