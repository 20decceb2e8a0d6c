"""Who may import whom, as in ``docs/architecture.md``: read from the source, so that a forbidden import cannot hide.

A room is a package or module right below ``kafka_eos``, and what stands in the larger ones has a table of its own.
Every import counts, whether it stands at the top of a file, in a function, or for type checkers only: to put one into a
function does not end a circle. What does not count is that Python runs the ``__init__`` of a package before its
modules.

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
    "core": "",
    "_util": "core",
    "abc": "core _util",
    "config": "core _util",
    # Bytes, decisions, what is stored, what a plan is
    "codecs": "core _util abc",
    "protocol": "core abc",
    "plan": "core _util abc config",
    "storage": "core _util abc protocol",
    # What reads and writes other systems
    "connectors": "core _util abc codecs",
    # What runs a plan
    "runtime": "core _util abc config codecs protocol plan storage",
    "savepoints": "core _util abc codecs protocol storage runtime",
    "testing": "core _util abc codecs protocol plan storage runtime savepoints",
    "coordination": "core _util abc config protocol plan storage runtime",
    "monitoring": "core _util abc protocol storage coordination",
    "embedded": "core _util config protocol plan storage runtime coordination",
    # __init__: tasks must have the driver's version
    "spark": "__init__ core _util config plan storage runtime savepoints coordination embedded",
    "structured_streaming": "core _util abc protocol storage connectors coordination spark",
    # What people call
    "api": "__init__ core _util abc config codecs protocol plan runtime testing coordination monitoring embedded",
    "audit": "core _util abc config codecs protocol plan storage connectors runtime coordination spark",
    "ops": "core _util abc config protocol plan storage connectors runtime savepoints testing coordination api",
    "devtools": "__init__ core _util abc config codecs plan storage connectors runtime testing coordination monitoring "
    "api audit",
    "pytest_plugin": "core _util abc codecs plan storage connectors runtime monitoring testing devtools",
    "cli": "__init__ core _util abc config codecs protocol plan storage connectors runtime testing savepoints "
    "coordination monitoring spark api audit ops devtools",
    "__main__": "cli",
}
"""What each room imports of the others: no more, and no less. A room stands below those that it imports."""

INSIDE: Mapping[str, Mapping[str, str]] = {
    "runtime": {
        "call_counts": "",
        "program": "",
        "state": "",
        "epoch_reports": "state",
        "operators": "state",
        "transport": "",
        "exchange": "state operators transport",
        "worker": "epoch_reports call_counts program state operators transport exchange",
    },
    "connectors": {
        "_shared": "",
        "polling_source": "",
        "_staged_tables": "_shared",
        "files": "_shared",
        "kafka": "_shared",
        "_lake": "_shared files",
        "_outbox": "_shared files",
        "dbapi": "_shared _staged_tables",
        "postgres": "_shared _staged_tables",
        "delta": "files _lake",
        "http": "_outbox",
        "iceberg": "_shared files _lake",
        "idempotent": "_outbox",
    },
    "connectors.kafka": {
        "client": "",
        "job_names": "",
        "topic_formats": "",
        "record_headers": "client",
        "rpc": "client",
        "sink": "client job_names record_headers topic_formats rpc",
        "source": "client job_names record_headers topic_formats rpc sink",
    },
    "connectors.files": {
        "disk": "",
        "file_names": "",
        "formats": "",
        "os_errors": "",
        "s3": "",
        "hive_partitions": "file_names",
        "sink": "disk file_names formats os_errors s3",
        "source": "os_errors s3 hive_partitions",
    },
    "audit": {
        "cluster": "",
        "facts": "",
        "tables": "cluster facts",
        "checks": "facts tables",
        "report": "facts tables checks",
        "job_audit": "cluster facts tables checks report",
        "topics": "cluster facts tables checks report",
        "state": "cluster facts tables checks report job_audit",
    },
}
"""The same of what stands in a room: folders, and modules beside them. The room's ``__init__`` is apart."""

DBAPI = (
    *("committer", "database", "sink", "staging_catalog", "statements", "stored_cells", "table_keys"),
    "table_staging",
)
POSTGRES = (
    "connection",
    "sink.audit_rows",
    "sink.column_compatibility",
    "sink.committer",
    "sink.direct_insert",
    "sink.postgres_sink",
    "sink.prepared_transactions",
    "sink.staging_catalog",
    "sink.staging_tables",
    "sink.statements",
    "source.exact_values",
    "source.reader",
    "source.snapshot_queries",
)
"""Modules of the connector that work with psycopg."""
ICEBERG = (
    "catalogs",
    "durable_file_io",
    "iceberg_table",
    "partitions",
)
"""Those that work with pyiceberg."""
FRONT_DOORS = {"kafka_eos", "kafka_eos.spark", "kafka_eos.structured_streaming"}
LATE = {"kafka_eos.api.run", "kafka_eos.config.settings", "kafka_eos.embedded.supervisor", "kafka_eos.plan.explain"}
"""Imported when ``Pipeline`` is asked to run or explain: to write a plan loads no engine."""
ENGINE = {"embedded", "monitoring"}

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
    expect_layers(MAY_IMPORT)


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_room_imports_only_what_it_may(name: str) -> None:
    allowed = {name, *MAY_IMPORT[name].split()}

    assert [str(each) for each in imports() if room(each.by) == name and room(each.what) not in allowed] == []


@pytest.mark.parametrize("name", MAY_IMPORT)
def test_a_room_may_import_only_what_it_does(name: str) -> None:
    used = {room(each.what) for each in imports() if room(each.by) == name}

    assert [allowed for allowed in MAY_IMPORT[name].split() if allowed not in used] == []


@pytest.mark.parametrize("package", INSIDE)
def test_inside_a_room_its_parts_import_what_they_may_and_no_less(package: str) -> None:
    begin = f"kafka_eos.{package}."
    parts: dict[str, set[str]] = {_part(begin, module): set() for module in sources() if module.startswith(begin)}
    for each in imports():
        if each.by.startswith(begin) and each.what.startswith(begin):
            parts[_part(begin, each.by)].add(_part(begin, each.what))

    assert {name: used - {name} for name, used in parts.items()} == {
        name: set(allowed.split()) for name, allowed in INSIDE[package].items()
    }


@pytest.mark.parametrize("package", INSIDE)
def test_inside_a_room_a_part_stands_below_those_that_it_may_import(package: str) -> None:
    expect_layers(INSIDE[package])


def expect_layers(may_import: Mapping[str, str]) -> None:
    """Each name of a table may import those above it in the table, and no others."""
    above: set[str] = set()
    for name, allowed in may_import.items():
        assert set(allowed.split()) <= above, name
        above.add(name)


def _part(begin: str, module: str) -> str:
    return module.removeprefix(begin).partition(".")[0]


def test_what_is_imported_late_is_imported_in_functions() -> None:
    of_api = [each for each in imports() if each.rooms[0] == "api" and each.by != "kafka_eos.api.run"]
    late = [each for each in of_api if each.what in LATE or each.rooms[1] in ENGINE]

    assert [str(each) for each in late if each.kind == "top"] == []
    assert {each.what for each in late if each.kind == "inner"} == LATE


@pytest.mark.parametrize("door", sorted(FRONT_DOORS))
def test_a_front_door_imports_nothing_before_a_name_is_asked_for(door: str) -> None:
    assert [str(each) for each in imports() if each.by == door] == []


def test_a_module_whose_name_is_computed_is_imported_in_few_places() -> None:
    """There the other tests see nothing.

    These are front doors, the table of commands, the package of the user's file, and a sink's factory in a process.
    """
    found = {
        module
        for module, tree in sources().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__"))
    }

    assert found == FRONT_DOORS | {"kafka_eos.cli", "kafka_eos.runtime.program", "kafka_eos.testing.sink_harness"}


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        (
            "confluent_kafka",
            {"kafka_eos.connectors.kafka.client.librdkafka", "kafka_eos.codecs.registry.registry_client"},
        ),
        (
            "psycopg",
            {f"kafka_eos.connectors.postgres.{name}" for name in POSTGRES} | {"kafka_eos.devtools.postgres"},
        ),
        (
            "httpx2",
            {
                "kafka_eos.connectors.http.client",
                "kafka_eos.codecs.registry.registry_client",
                "kafka_eos.codecs.registry.response_bounds",
            },
        ),
        ("kafka_eos_native", {"kafka_eos.connectors.kafka.client.native_module"}),
        ("deltalake", {"kafka_eos.connectors.delta.delta_log"}),
        (
            "pyiceberg",
            {f"kafka_eos.connectors.iceberg.{name}" for name in ICEBERG},
        ),
        (
            "sqlalchemy",
            {f"kafka_eos.connectors.iceberg.{name}" for name in ("catalogs", "iceberg_table")}
            | {f"kafka_eos.connectors.dbapi.{name}" for name in DBAPI},
        ),
        ("boto3", {"kafka_eos.connectors.files.s3.bucket"}),
        ("botocore", {"kafka_eos.connectors.files.s3.bucket"}),
        ("kio", set()),  # a witness for tests; see tests/wire.py
        ("pickle", {"kafka_eos.runtime.operators.branch_copies"}),  # what it has written itself, in the same call
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
