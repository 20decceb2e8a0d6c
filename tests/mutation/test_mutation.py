"""The mutants themselves: what is made of a source, that a test's failure is seen, and that the list is true."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from textwrap import dedent, indent

import pytest

from tests.mutation.decisions import decision_mutants
from tests.mutation.instead import module_of
from tests.mutation.losses import loss_mutants
from tests.mutation.nearest import FILES, LEFT_OUT, ROOMS, _tests, mutated
from tests.mutation.results import Results, file_of, is_of
from tests.mutation.rounds import all_but_first, all_but_last, last_of
from tests.mutation.sampling import sample
from tests.mutation.signatures import ROOT, files, of_library, optional_arguments
from tests.mutation.survivors import LIST, argued
from tests.mutation.watching import Seen

ALONE = [test for tests in (*ROOMS.values(), *FILES.values()) for test in tests if "::" in test]
ARGUED = [line[2:-2] for line in LIST.read_text(encoding="utf-8").splitlines() if line.startswith('["')]
OPTIONAL = optional_arguments([ast.parse("def keep(rows, at=0): ...\nclass Row:\n    value: int\n    place: int = 0")])


def made_of(text: str) -> list[str]:
    return [ast.unparse(mutant.tree) for mutant in decision_mutants(dedent(text))]


def lost_of(text: str) -> list[str]:
    """The bodies of a function that has this one."""
    whole = "def f(self, rows, job):\n" + indent(dedent(text), "    ")
    return [dedent(ast.unparse(mutant.tree).partition("\n")[2]) for mutant in loss_mutants(whole, OPTIONAL)]


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
    ("text", "mistakes"),
    [
        ("send(rows)", ["pass"]),
        ("self._observe('committed')", ["pass"]),
        ("self._spans.append(rows)", ["pass"]),
        ("await send(rows)", ["pass"]),
        ("del self.rows[job]", ["pass"]),
        ("self.rows = job", ["pass"]),
        ("rows = job", ["pass"]),
        ("self.rows -= job", ["pass"]),
        ("for row in rows:\n    continue", [
            "for row in all_but_first(rows):\n    continue",
            "for row in all_but_last(rows):\n    continue",
            "for row in rows:\n    pass",
        ]),
        ("if rows:\n    return", ["if rows:\n    pass"]),
        ("raise Lost(rows[0])", ["pass"]),
        ("a(rows)\nb(rows)", ["pass\nb(rows)", "b(rows)\na(rows)", "a(rows)\npass"]),
        ("rows.set_a(1)\nrows.set_b(2)", ["pass\nrows.set_b(2)", "rows.set_a(1)\npass"]),
        ("self.rows = job\nself.send()", [
            "pass\nself.send()", "self.send()\nself.rows = job", "self.rows = job\npass"
        ]),
        ("self.rows = job\nself.lock.notify_all()", ["pass\nself.lock.notify_all()", "self.rows = job\npass"]),
        ("self.rows = job\nself.seen.add(job)", ["pass\nself.seen.add(job)", "self.rows = job\npass"]),
        *(
            (f"self.rows = job\n{call}", [f"pass\n{call}", f"{call}\nself.rows = job", "self.rows = job\npass"])
            for call in ("self.seen.add(self.newest())", "self.store.append(rows, job)", "self.rows.clear()")
        ),
        ("ensure_a(rows)\nself._expect_b(job)", ["pass\nself._expect_b(job)", "ensure_a(rows)\npass"]),
        ("ensure_a(rows)\nsend(job)", ["pass\nsend(job)", "send(job)\nensure_a(rows)", "ensure_a(rows)\npass"]),
        ("if rows < job:\n    raise Bug(rows[0])\nsend(job)", ["if rows < job:\n    raise Bug(rows[0])\npass"]),
        ("if rows:\n    raise Lost\nsend(job)", [
            "send(job)\nif rows:\n    raise Lost", "if rows:\n    pass\nsend(job)", "if rows:\n    raise Lost\npass",
        ]),
        ("return rows[0]", ["return rows[-1]"]),
        ("return rows[-1]", ["return rows[0]"]),
        ("return rows[1:]", ["return rows"]),
        ("return sorted(rows)", ["return sorted(rows, reverse=True)"]),
        ("return sorted(rows, reverse=True)", ["return sorted(rows)"]),
        ("return list(reversed(rows))", ["return list(iter(list(rows)))"]),
        ("return min(rows)", ["return max(rows)"]),
        ("return rows.popleft()", ["return rows.pop()"]),
        ("return rows.partition(':')", ["return rows.rpartition(':')"]),
        ("return next(iter(rows))", ["return last_of(iter(rows))"]),
        ("return any(rows)", ["return all(rows)"]),
        ("return [a for a in rows if a]", ["return [a for a in rows]", "return [a for a in all_but_last(rows) if a]"]),
        ("return rows and job", ["return job", "return rows"]),
        ("return rows - job", ["return rows"]),
        ("return rows + 1", ["return rows"]),
        ("return rows.job == job", ["return True"]),
        ("return rows.epoch != job", ["return False"]),
        ("return rows.startswith(job)", ["return True"]),
        ("return rows < job", ["return rows <= job"]),
        ("return 1 < rows <= job", ["return 1 <= rows <= job", "return 1 < rows < job"]),
        ("return replace(rows, value=1)", ["return replace(rows)"]),
        ("return Row(value=1, place=2)", ["return Row(value=1)"]),
        ("return keep(rows, at=1)", ["return keep(rows)"]),
        ("return {'a': rows, 'b': job}", ["return {'b': job}", "return {'a': rows}"]),
    ],
)  # fmt: skip
def test_every_mistake_that_loses_something_is_made(text: str, mistakes: list[str]) -> None:
    assert lost_of(text) == mistakes


@pytest.mark.parametrize(
    "text",
    [
        "a = job",
        "_log.info(rows[0])",
        "self.notice(rows[0])",
        "self._observe('hung', at=rows[0])",
        "self._history.write('aborted', at=rows[0])",
        "self._observers.tell(job, rows[0])",
        "taken.spans.append(rows[0])",
        "hit('commit.between')",
        "assert rows[0] < job",
        "return keep(rows, at=0)",
        "return f'{rows[0]}'",
        "return now - deadline",
        "rows.busy += perf_counter() - job",
        "return rows.value == 1",
        "while True:\n    break",
        "for _ in rows:\n    pass",
        "return rows.partition()",
        "return rows.split()",
    ],
)
def test_what_loses_nothing_or_fails_wherever_it_runs_is_left_alone(text: str) -> None:
    assert lost_of(text) == []


def test_what_a_module_says_and_what_is_shown_is_left_alone() -> None:
    for function in ("__repr__(self)", "describe(self) -> Mapping[str, Json]"):
        source = f"a = sorted(b)\nclass C:\n    def {function}: return self.a[0]"
        assert list(loss_mutants(source, OPTIONAL)) == []


def test_a_loop_without_its_first_or_last_round_has_all_others() -> None:
    rounds = [[], [1], [1, 2, 3]]

    assert [list(all_but_first(items)) for items in rounds] == [items[1:] for items in rounds]
    assert [list(all_but_last(items)) for items in rounds] == [items[:-1] for items in rounds]
    assert last_of([1, 2]) == last_of([], 2) == 2


def test_a_sample_is_the_same_for_a_seed_and_keeps_the_others_when_a_file_is_left_out() -> None:
    chosen = dict.fromkeys(
        ["kafka_eos/protocol/lineage.py", "kafka_eos/protocol/barrier_alignment.py"], "kafka_eos/protocol"
    )
    names = [str(each) for each in sample(chosen, 20, 1, OPTIONAL)]
    fewer = {"kafka_eos/protocol/lineage.py": "kafka_eos/protocol"}

    assert names == [str(each) for each in sample(chosen, 20, 1, OPTIONAL)]
    assert names != [str(each) for each in sample(chosen, 20, 2, OPTIONAL)]
    assert [name for name in names if "lineage" in name] == [str(each) for each in sample(fewer, 20, 1, OPTIONAL)][
        : sum("lineage" in name for name in names)
    ]


@pytest.mark.parametrize(
    "text", ['"""Text 1."""', "x: Literal[1]", "@f(1)\ndef g(): ...", "x = f'{1}'", "import a", "class A(B[1]): ..."]
)
def test_what_is_no_decision_is_left_alone(text: str) -> None:
    assert made_of(text) == []


def test_a_mutant_is_named_by_its_function_and_keeps_its_name_if_lines_move() -> None:
    text = "class A:\n    def f(self):\n        x = 1\n        y = 1"

    names = [mutant.name for mutant in decision_mutants(text)]

    assert names == ["A.f: 1 → 2", "A.f: 1 → 2 (2)"]
    assert names == [mutant.name for mutant in decision_mutants("\n\n" + text)]


@pytest.mark.parametrize("file", ["kafka_eos/protocol/lineage.py", "kafka_eos/runtime/operators/due_work.py"])
def test_a_source_is_as_it_was_when_its_mutants_are_made(file: str) -> None:
    text = (ROOT / file).read_text(encoding="utf-8")
    whole = ast.unparse(ast.parse(text))

    for made in (decision_mutants(text), loss_mutants(text, OPTIONAL)):
        assert all(ast.unparse(mutant.tree) != whole for mutant in made)


def test_every_file_of_a_room_names_tests_and_every_folder_is_a_room_or_left_out() -> None:
    named = [room for room in (*ROOMS, *LEFT_OUT) if room not in ("kafka_eos", "connectors")]
    folders = {file.rpartition("/")[0] for file in files()}
    alone = {file for file in LEFT_OUT if file.endswith(".py")}

    assert alone <= set(files()) and not alone & mutated().keys()
    assert all(f"def {test.partition('::')[2]}(" in (ROOT / file_of(test)).read_text() for test in ALONE)
    assert [test for tests in (*ROOMS.values(), *FILES.values()) for test in tests if not list(_tests(test))] == []
    assert [
        each for each in folders - set(LEFT_OUT) if not f"{each}/".startswith(tuple(f"{room}/" for room in named))
    ] == []
    assert set(ROOMS) <= folders
    assert all(why.strip() for why in LEFT_OUT.values())


def test_what_is_argued_away_is_a_mutant_with_a_reason() -> None:
    assert set(ARGUED) <= mutated().keys()
    for file in ARGUED:
        text = (ROOT / file).read_text(encoding="utf-8")
        left = argued(file).keys() - {mutant.name for mutant in decision_mutants(text)}
        assert not left or left <= {mutant.name for mutant in loss_mutants(text, of_library())}, file
        assert all(why.strip() for why in argued(file).values())


def test_a_test_may_notice_what_it_calls_or_what_a_process_that_it_starts_may_call() -> None:
    call = frozenset({"kafka_eos/protocol/lineage.py:holds"})

    assert Seen(1, call, starts=False).reaches("kafka_eos/protocol/lineage.py")
    assert not Seen(1, call, starts=False).reaches("kafka_eos/protocol/incarnations.py")
    assert Seen(1, call, starts=True).reaches("kafka_eos/protocol/incarnations.py")


def test_a_test_is_named_by_its_file_or_its_function() -> None:
    once, drawn = "tests/chaos/test_incarnations.py::test_once", "tests/chaos/test_incarnations.py::test_once[1]"

    assert is_of(once, once) and is_of(drawn, once) and is_of(once, "tests/chaos/test_incarnations.py")
    assert not is_of(once, f"{once}_more") and not is_of(f"{once}_more", once)


def test_results_last_as_long_as_the_file_and_its_tests(tmp_path: Path) -> None:
    tests = ["test_a.py", "test_b.py::test_y"]
    (tmp_path / "a.py").write_text("x = 1")
    for test in tests:
        (tmp_path / file_of(test)).write_text("assert x")
    results = Results.of(tmp_path, "a.py", "fast", tests)
    results.add("module: 1 → 2", "test_a.py::test_x")
    results.add("module: 1 → 3", "")

    assert Results.of(tmp_path, "a.py", "fast", tests).known == {
        "module: 1 → 2": "test_a.py::test_x",
        "module: 1 → 3": "",
    }
    (tmp_path / "test_b.py").write_text("assert x == 1")
    assert Results.of(tmp_path, "a.py", "fast", tests).known == {"module: 1 → 2": "test_a.py::test_x"}
    (tmp_path / "test_a.py").write_text("assert x == 1")
    assert Results.of(tmp_path, "a.py", "fast", tests).known == {}


@pytest.mark.parametrize(
    ("file", "module"),
    [
        ("kafka_eos/protocol/lineage.py", "kafka_eos.protocol.lineage"),
        ("connectors/files/sink/committer.py", "kafka_eos.connectors.files.sink.committer"),
    ],
)
def test_a_file_is_replaced_under_the_name_that_it_is_imported_by(file: str, module: str) -> None:
    assert module_of(file) == module


PLANTING = """
import ast
from pathlib import Path
from tests.mutation.running import Trial, result_of

file, test = "kafka_eos/protocol/lineage.py", "tests/unit/protocol/test_lineage.py"
text = Path(file).read_text(encoding="utf-8")
for changed in (text, text.replace("<= last", "< last")):
    result = result_of(Trial([test], file=file, tree=ast.parse(changed), seen=None))
    print(bool(result.failed))
"""


def test_a_mistake_is_noticed_where_the_file_itself_passes() -> None:
    """In a process of its own: here the file is imported already."""
    done = subprocess.run([sys.executable, "-c", PLANTING], cwd=ROOT, capture_output=True, text=True, check=True)

    assert done.stdout.split() == ["False", "True"]


def test_processes_that_a_test_starts_have_the_mutant_too(tmp_path: Path) -> None:
    (tmp_path / "mutant.py").write_text("made = [*all_but_last([1, 2])]")
    command = (
        "import tests.mutation.instead as i, pathlib, subprocess, sys; "
        "i.name_mutant(pathlib.Path(sys.argv[1]), 'kafka_eos/protocol/lineage.py'); "
        "subprocess.run([sys.executable, '-c', 'from kafka_eos.protocol.lineage import made; print(made)'], check=True)"
    )
    done = subprocess.run(
        [sys.executable, "-c", command, tmp_path / "mutant.py"], cwd=ROOT, capture_output=True, text=True, check=True
    )

    assert done.stdout == "[1]\n"
