"""The mutants themselves: what is made of a source, that a test's failure is seen, and that the list is true."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.mutation.areas import AREAS
from tests.mutation.operators import mutants
from tests.mutation.results import Results
from tests.mutation.running import module_of
from tests.mutation.survivors import LIST, argued

ROOT = Path(__file__).parents[2]
FILES = {file: tests for area in AREAS.values() for file, tests in area.items()}


def made_of(text: str) -> list[str]:
    return [ast.unparse(mutant.tree) for mutant in mutants(dedent(text))]


@pytest.mark.parametrize(
    ("text", "mistakes"),
    [
        ("x = a < b", ["x = a <= b", "x = a >= b"]),
        ("x = a <= b", ["x = a < b", "x = a > b"]),
        ("x = a < b < c", ["x = a <= b < c", "x = a >= b < c", "x = a < b <= c", "x = a < b >= c"]),
        ("x = a in b", ["x = a not in b"]),
        ("x = a and b", ["x = b", "x = a"]),
        ("x = not a", ["x = a"]),
        ("x = a + b", ["x = a - b"]),
        ("x = 1", ["x = 2"]),
        ("x = True", ["x = False"]),
        ("x = a if b else c", ["x = a", "x = c"]),
        ("x = min(a)", ["x = max(a)"]),
        ("x = replace(a, b=c, d=e)", ["x = replace(a, d=e)", "x = replace(a, b=c)"]),
        ("x = [a for a in b if c]", ["x = [a for a in b]"]),
        ("f(a)", ["pass"]),
        ("raise a", ["pass"]),
        ("def f():\n    return g(a)", ["def f():\n    return None"]),
        ("if a:\n    b = c", ["if True:\n    b = c", "if False:\n    b = c"]),
        (
            "match a:\n    case b if c:\n        d = e",
            ["match a:\n    case b:\n        d = e"],
        ),
    ],
)
def test_every_small_mistake_is_made(text: str, mistakes: list[str]) -> None:
    assert made_of(text) == mistakes


@pytest.mark.parametrize(
    "text", ['"""Text 1."""', "x: Literal[1]", "@f(1)\ndef g(): ...", "x = f'{1}'", "import a", "class A(B[1]): ..."]
)
def test_what_is_no_decision_is_left_alone(text: str) -> None:
    assert made_of(text) == []


def test_a_mutant_is_named_by_its_function_and_keeps_its_name_if_lines_move() -> None:
    text = "class A:\n    def f(self):\n        x = 1\n        y = 1"

    names = [mutant.name for mutant in mutants(text)]

    assert names == ["A.f: 1 → 2", "A.f: 1 → 2 (2)"]
    assert names == [mutant.name for mutant in mutants("\n\n" + text)]


@pytest.mark.parametrize("file", ["kafka_eos/protocol/lineage.py", "kafka_eos/protocol/alignment.py"])
def test_a_source_is_as_it_was_when_its_mutants_are_made(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    whole = ast.unparse(ast.parse(text))

    assert all(ast.unparse(mutant.tree) != whole for mutant in mutants(text))


def test_every_decision_of_the_protocol_is_in_the_table() -> None:
    decisions = {path.relative_to(ROOT).as_posix() for path in (ROOT / "kafka_eos/protocol").glob("*.py")}

    assert decisions - {"kafka_eos/protocol/__init__.py"} == AREAS["protocol"].keys()


@pytest.mark.parametrize("file", FILES)
def test_what_is_argued_away_is_a_mutant_with_a_reason(file: str) -> None:
    names = {mutant.name for mutant in mutants((ROOT / file).read_text(encoding="utf-8"))}

    assert argued(file).keys() <= names
    assert all(why.strip() for why in argued(file).values())
    assert all((ROOT / test).exists() for test in FILES[file])


def test_nothing_is_argued_away_of_a_file_that_is_not_in_the_table() -> None:
    named = {line[2:-2] for line in LIST.read_text(encoding="utf-8").splitlines() if line.startswith('["')}

    assert named <= FILES.keys()


def test_results_last_as_long_as_the_file_and_its_tests(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1")
    (tmp_path / "test_a.py").write_text("assert x")
    Results.of(tmp_path, "a.py", ["test_a.py"]).add("module: 1 → 2", survives=True)

    assert Results.of(tmp_path, "a.py", ["test_a.py"]).known == {"module: 1 → 2": True}
    (tmp_path / "test_a.py").write_text("assert x == 1")
    assert Results.of(tmp_path, "a.py", ["test_a.py"]).known == {}


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("kafka_eos/protocol/lineage.py", "kafka_eos.protocol.lineage"),
        ("connectors/files/committer.py", "kafka_eos.connectors.files.committer"),
    ],
)
def test_a_file_is_replaced_under_the_name_that_it_is_imported_by(file: str, module: str) -> None:
    assert module_of(file) == module


PLANTING = """
import ast
from pathlib import Path
from tests.mutation.running import passes

file, test = "kafka_eos/protocol/lineage.py", ["tests/protocol/test_lineage.py"]
text = Path(file).read_text(encoding="utf-8")
print(passes(file, ast.parse(text), test, None), passes(file, ast.parse(text.replace("<= last", "< last")), test, None))
"""


def test_a_mistake_is_noticed_where_the_file_itself_passes() -> None:
    """In a process of its own: here the file is imported already."""
    done = subprocess.run([sys.executable, "-c", PLANTING], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["True", "False"]
