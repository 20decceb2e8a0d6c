"""Who may import whom, as in ``docs/architecture.md``: read from the source, so that a forbidden import cannot hide.

A room is a package or module right below ``kafka_eos``. Imports inside functions count; imports for type checkers
only do not, since they make nothing depend on anything at run time.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "kafka_eos"

BASE = {"errors", "ids", "records", "interfaces", "addresses", "secrets", "extras", "attribution", "calls"}
VALUES = BASE | {"schemas", "provenance", "failpoints"}
PLAN = VALUES | {"plan", "settings", "state", "operators"}
JOB = PLAN | {"exchange", "checkpoints", "coordinator", "protocol", "app", "dsl", "explain"}
ENGINES = JOB | {"embedded", "spark"}

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "attribution": {"errors"},
    "calls": set(),
    "addresses": set(),
    "cores": set(),
    "records": set(),
    "secrets": set(),
    "extras": {"errors"},
    "ids": {"errors"},
    "interfaces": {"ids", "records"},
    "failpoints": {"errors"},
    "provenance": BASE,
    "protocol": BASE,
    "settings": BASE | {"cores"},
    "schemas": BASE,
    "plan": BASE,
    # checkpoints: the one namer of files, and savepoints; schemas: the offline reader decodes what they encoded
    "state": BASE | {"failpoints", "checkpoints", "schemas"},
    "checkpoints": BASE | {"failpoints"},
    "operators": BASE | {"plan", "schemas", "state", "provenance"},
    "exchange": BASE | {"plan", "operators", "state", "protocol"},  # protocol: which subtask reads which split
    "dsl": BASE | {"plan", "operators", "schemas", "settings", "explain", "embedded", "cli"},
    "explain": BASE | {"plan", "settings"},
    "app": BASE | {"dsl"},
    "coordinator": BASE | {"settings"} | {"failpoints", "protocol", "checkpoints", "plan", "state", "settings"},
    # state: number of key groups; settings: its supervision runs whole jobs
    "embedded": JOB,
    # connectors: its door for Structured Streaming queries is a Kafka sink; __version__: tasks must have the driver's
    "spark": JOB | {"connectors", "__version__"},
    "testing": JOB,
    "connectors": VALUES | {"protocol"},  # protocol: committers ask for a CommitPermit
    "devbroker": BASE,
    "audit": ENGINES | {"devbroker"},  # devbroker: fetches the jars of Spark too
}
"""What each room may import of the others. The cli, the demo and ``__main__`` may import everything."""

FREE = {"cli", "demo", "__main__", "__init__"}
LAZY = {("dsl", "settings"), ("dsl", "explain"), ("dsl", "embedded"), ("dsl", "cli")}
"""Front doors: allowed inside a function only, so that loading the lower room does not load the upper one."""


def files(room: str) -> list[Path]:
    module = PACKAGE / f"{room}.py"
    return [module] if module.exists() else sorted((PACKAGE / room).rglob("*.py"))


def rooms() -> list[str]:
    found = {path.stem if path.suffix == ".py" else path.name for path in PACKAGE.iterdir()}
    return sorted(room for room in found if room.isidentifier() and files(room) and room not in FREE)


def imports(path: Path) -> Iterator[tuple[str, int, bool]]:
    """Rooms that a file imports at run time, with the line, and whether the import is at the top level."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If)
        and "TYPE_CHECKING" in ast.unparse(node.test)
        and "not" not in ast.unparse(node.test)
        for child in ast.walk(node)
    }
    inner = {id(c) for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) for c in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        for name in _names(node):
            yield name, node.lineno, id(node) not in inner  # type: ignore[attr-defined]


def _names(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        modules = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module == "kafka_eos":
        modules = [f"kafka_eos.{alias.name}" for alias in node.names]
    elif isinstance(node, ast.ImportFrom) and node.module:
        modules = [node.module]
    else:
        modules = []
    for module in modules:
        package, _, rest = module.partition(".")
        if package == "kafka_eos":
            yield rest.partition(".")[0] or "__init__"


def test_every_room_has_a_rule() -> None:
    assert set(rooms()) <= set(MAY_IMPORT)


@pytest.mark.parametrize("room", rooms())
def test_a_room_imports_only_what_it_may(room: str) -> None:
    allowed = MAY_IMPORT.get(room, set()) | {room}
    wrong = [
        f"{path.relative_to(PACKAGE)}:{line} imports {name}"
        for path in files(room)
        for name, line, top in imports(path)
        if name not in allowed or ((room, name) in LAZY and top)
    ]

    assert wrong == []


@pytest.mark.parametrize(
    ("library", "homes"),
    [
        ("confluent_kafka", {"connectors/kafka/client.py"}),
        ("kafka", {"connectors/kafka/rpc.py", "connectors/kafka/security.py"}),
        ("pickle", set()),
        ("cloudpickle", set()),
    ],
)
def test_a_library_is_imported_in_its_one_home(library: str, homes: set[str]) -> None:
    found = {
        str(path.relative_to(PACKAGE))
        for room in rooms()
        for path in files(room)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if library in _libraries(node)
    }

    assert found <= homes


def _libraries(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Import):
        return {alias.name.partition(".")[0] for alias in node.names}
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return {node.module.partition(".")[0]}
    return set()
