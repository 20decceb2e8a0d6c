"""Who may import whom, as in ``docs/architecture.md``: read from the source, so that a forbidden import cannot hide.

A room is a package or module right below ``kafka_eos``. Every import counts, whether it stands at the top of a file, in
a function, or for type checkers only: to put one into a function does not end a circle. What does not count is that
Python runs the ``__init__`` of a package before its modules.

A front door is an ``__init__`` that imports nothing until a name is asked for. Who imports a name through it imports
the file that the name is of.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal, TypeAlias

import pytest

PACKAGE = Path(__file__).parent.parent / "kafka_eos"

MAY_IMPORT: Mapping[str, str] = {
    # What everything is made of
    "__init__": "",  # a front door, and the version
    "errors": "",
    "calls": "",
    "collector": "",
    "cores": "",
    "excerpts": "",
    "records": "excerpts",
    "secrets": "",
    "addresses": "secrets",
    "stacks": "errors",
    "extras": "errors",
    "ids": "errors",
    "attribution": "errors",
    "failpoints": "errors",
    "limits": "errors",
    "lines": "errors",
    "interfaces": "errors ids records attribution lines",
    "provenance": "ids records",
    "origins": "limits ids provenance records",
    "schemas": "errors interfaces records calls extras secrets",
    "aggregates": "errors schemas",
    "client_config": "secrets",
    "config_file": "errors",
    "log_context": "records",
    "logs": "log_context",
    "settings": "errors ids interfaces addresses client_config config_file cores logs secrets",
    # Plan, decisions, what is stored
    "plan": "errors ids interfaces attribution lines",
    "protocol": "errors ids interfaces records",
    "checkpoints": "limits errors ids interfaces addresses failpoints protocol",
    # schemas: for the offline reader; protocol: positions of tables
    "state": "limits errors ids interfaces records calls failpoints schemas protocol checkpoints",
    "operators": "limits log_context excerpts errors ids interfaces records attribution calls failpoints provenance "
    "schemas plan protocol state",
    "exchange": "limits errors ids interfaces records attribution plan protocol state",
    "connectors": "limits logs errors ids interfaces records extras addresses attribution calls failpoints provenance "
    "origins schemas secrets protocol",
    # What runs a plan
    "source_readers": "ids interfaces records protocol",
    "open_task": ("ids interfaces records failpoints settings plan protocol state operators exchange source_readers"),
    "explain": "interfaces attribution settings plan",
    "coordinator": "errors ids interfaces records failpoints settings plan protocol checkpoints state explain",
    "testing": "errors ids interfaces records plan protocol checkpoints state operators",
    "app": "errors ids plan",
    "embedded": "limits log_context logs errors ids interfaces records failpoints settings plan protocol checkpoints "
    "state operators exchange open_task coordinator app collector stacks",
    "spark": "__init__ log_context logs errors ids interfaces records failpoints settings plan protocol checkpoints "
    "state operators exchange open_task coordinator app collector",  # __init__: tasks must have the driver's version
    "structured_streaming": "limits errors ids interfaces failpoints protocol checkpoints connectors coordinator spark",
    # What people call
    "metrics": "logs errors records",
    "ui": "excerpts errors interfaces records checkpoints coordinator metrics",
    "terminal": "__init__ logs errors extras ids interfaces settings plan protocol coordinator app embedded metrics "
    "stacks ui",
    "dsl": "errors ids interfaces records attribution lines aggregates schemas settings plan operators coordinator app "
    "embedded explain terminal",
    "devbroker": "errors",
    # connectors: the Java client shows no batches; devbroker: fetches the jars of Spark too
    "audit": "errors ids interfaces records extras origins provenance schemas settings plan protocol checkpoints state "
    "operators exchange connectors coordinator app collector spark devbroker secrets",
    "dead_letters": "limits excerpts errors ids interfaces records settings plan checkpoints state connectors app dsl",
    "demo": "__init__ errors ids extras settings checkpoints connectors coordinator app dsl devbroker audit ui",
    "doctor": "errors interfaces settings plan checkpoints coordinator cores",
    "cli": "__init__ errors ids interfaces config_file secrets settings plan protocol checkpoints state coordinator "
    "app collector schemas spark explain terminal devbroker audit dead_letters demo stacks extras ui doctor connectors "
    "metrics",
    "__main__": "cli",
}
"""What each room imports of the others: no more, and no less. A room stands below those that it imports."""

POSTGRES = (
    "client",
    "committer",
    "fitting",
    "inserting",
    "ledger",
    "prepared",
    "ranges",
    "reader",
    "sink",
    "staging",
    "statements",
    "telling",
)
"""Modules of the connector that work with psycopg."""
ICEBERG = ("catalogs", "durable", "partitions", "table")
"""Those that work with pyiceberg."""
FRONT_DOORS = {"kafka_eos", "kafka_eos.spark"}
LATE = {("dsl", "settings"), ("dsl", "explain"), ("dsl", "embedded"), ("dsl", "terminal")}
"""Imported when they are called for: loading the one room does not load the other."""

pytestmark = pytest.mark.xdist_group("layers")  # parses every module once

Kind: TypeAlias = Literal["top", "inner", "typing"]


@dataclass(frozen=True)
class Import:
    """``by`` and ``what`` are modules. ``kind``: at the top of the file, in a function, or for type checkers only."""

    by: str
    what: str
    line: int
    kind: Kind

    @property
    def rooms(self) -> tuple[str, str]:
        return room(self.by), room(self.what)

    def __str__(self) -> str:
        return f"{self.by}, line {self.line}, imports {self.what}"


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


@cache
def sources() -> Mapping[str, ast.Module]:
    """Every module of the package, parsed."""
    tops = [path for path in PACKAGE.iterdir() if path.is_dir() or path.suffix == ".py"]
    files = [file for path in tops for file in ([path] if path.is_file() else path.rglob("*.py"))]
    return {_module(file): ast.parse(file.read_text(encoding="utf-8")) for file in sorted(files)}


def _module(file: Path) -> str:
    parts = file.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if len(parts) > 1 and parts[-1] == "__init__" else parts)


@cache
def statements() -> Mapping[str, Mapping[ast.Import | ast.ImportFrom, Kind]]:
    """By module: where it imports anything, and how. To look through all modules takes long, so it is done once."""
    return {module: _statements(tree) for module, tree in sources().items()}


def _statements(tree: ast.Module) -> Mapping[ast.Import | ast.ImportFrom, Kind]:
    nodes = list(ast.walk(tree))
    inner = [_lines([each]) for each in nodes if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    typing = [_lines(each.body) for each in nodes if isinstance(each, ast.If) and _is_for_types(each.test)]

    def kind(line: int) -> Kind:
        if any(line in lines for lines in typing):
            return "typing"
        return "inner" if any(line in lines for lines in inner) else "top"

    return {each: kind(each.lineno) for each in nodes if isinstance(each, ast.Import | ast.ImportFrom)}


def _lines(nodes: Sequence[ast.stmt]) -> range:
    return range(nodes[0].lineno, (nodes[-1].end_lineno or 0) + 1)


def _is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


@cache
def imports() -> tuple[Import, ...]:
    """Every import of one module of the package by another."""
    found = (each for by in sources() for each in _imports(by))
    return tuple(each for each in found if each.by != each.what and not _is_offer(each))


def _is_offer(found: Import) -> bool:
    """The name that a front door has for others: nothing is imported there."""
    return found.by in FRONT_DOORS and found.kind == "typing"


def _imports(by: str) -> Iterator[Import]:
    for node, kind in statements()[by].items():
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            assert not node.level, f"{by}, line {node.lineno}: write the whole name"
            names = [_home(str(node.module), alias.name) for alias in node.names]
        for name in names:
            if name.partition(".")[0] == "kafka_eos":
                yield Import(by, _known(name), node.lineno, kind)


def _home(module: str, name: str) -> str:
    """What ``from module import name`` imports: a module, or where a front door has the name from."""
    if module in FRONT_DOORS:
        for node in statements()[module]:
            if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
                return str(node.module)
    return f"{module}.{name}"


def _known(name: str) -> str:
    """The module that a dotted name begins with."""
    while name not in sources():
        name = name.rpartition(".")[0]
    return name


def circle(edges: Iterator[tuple[str, str]]) -> list[str]:
    """One of the circles that the edges make; [] if they make none."""
    graph: dict[str, set[str]] = {}
    for one, other in edges:
        graph.setdefault(one, set()).add(other)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found[::-1]
    return []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle((each.by, each.what) for each in imports()) == []


def test_no_rooms_import_each_other_in_a_circle() -> None:
    assert circle(each.rooms for each in imports() if len(set(each.rooms)) == 2) == []


def test_every_room_stands_in_the_table_below_those_that_it_may_import() -> None:
    assert {room(module) for module in sources()} == set(MAY_IMPORT)
    above: set[str] = set()
    for name, allowed in MAY_IMPORT.items():
        assert set(allowed.split()) <= above, name
        above.add(name)


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_room_imports_only_what_it_may(name: str) -> None:
    allowed = {name, *MAY_IMPORT[name].split()}

    assert [str(each) for each in imports() if room(each.by) == name and room(each.what) not in allowed] == []


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_room_may_import_only_what_it_does(name: str) -> None:
    used = {room(each.what) for each in imports() if room(each.by) == name}

    assert [allowed for allowed in MAY_IMPORT[name].split() if allowed not in used] == []


def test_what_is_imported_late_is_imported_in_functions() -> None:
    late = [each for each in imports() if each.rooms in LATE]

    assert [str(each) for each in late if each.kind == "top"] == []
    assert {each.rooms for each in late if each.kind == "inner"} == LATE


@pytest.mark.parametrize("door", sorted(FRONT_DOORS))
def test_a_front_door_imports_nothing_before_a_name_is_asked_for(door: str) -> None:
    assert [str(each) for each in imports() if each.by == door] == []


def test_a_module_whose_name_is_computed_is_imported_in_few_places() -> None:
    """There the other tests see nothing: front doors, the table of commands, and a sink's factory in a process."""
    found = {
        module
        for module, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__"))
    }

    assert found == FRONT_DOORS | {"kafka_eos.cli", "kafka_eos.testing.sink_harness"}


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        (
            "confluent_kafka",
            {"kafka_eos.connectors.kafka.client.librdkafka", "kafka_eos.codecs.registry.registry_client"},
        ),
        (
            "psycopg",
            {f"kafka_eos.connectors.postgres.{name}" for name in POSTGRES} | {"kafka_eos.devtools.demo.postgres"},
        ),
        ("httpx2", {"kafka_eos.connectors.http.client", "kafka_eos.codecs.registry.registry_client"}),
        ("deltalake", {"kafka_eos.connectors.delta.delta_log"}),
        (
            "pyiceberg",
            {f"kafka_eos.connectors.iceberg.{name}" for name in ICEBERG},
        ),
        ("sqlalchemy", {f"kafka_eos.connectors.iceberg.{name}" for name in ("catalogs", "table")}),
        ("boto3", {"kafka_eos.connectors.files.s3.bucket"}),
        ("botocore", {"kafka_eos.connectors.files.s3.bucket"}),
        ("kio", set()),  # a witness for tests; see tests/wire.py
        ("pickle", set()),
        ("cloudpickle", set()),
    ],
)
def test_a_library_is_imported_in_its_one_home(library: str, homes: set[str]) -> None:
    found = {module for module, nodes in statements().items() for node in nodes if library in _libraries(node)}

    assert found == homes


def _libraries(node: ast.Import | ast.ImportFrom) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    return {node.module.partition(".")[0]} if node.module else set()
