"""What a process has loaded of the user's, and that another process of the job has loaded the same."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from kafka_eos.core.errors import Fatal
from kafka_eos.core.ids import AppRef
from kafka_eos.runtime.program import CodeFingerprint, load_program

APP = """
from kafka_eos import Pipeline
from kafka_eos.testing import ListSource, MemorySink
{imports}
pipeline = Pipeline("p")
for name in {names}:
    pipeline.source(ListSource([1]), name=name).sink(MemorySink(), name=f"out-{{name}}")
"""


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., CodeFingerprint]]:
    """Writes an app with files beside it, loads it, and tells its code; each call is as a process of its own."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    before = {*sys.modules}

    def make(names: str = '["a", "b"]', **files: str) -> CodeFingerprint:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        imports = "\n".join(f"import {name}" for name in files)
        app = tmp_path / "app.py"
        app.write_text(APP.format(imports=imports, names=names))
        return CodeFingerprint.compute(app, load_program(AppRef(app)).plan())

    yield make
    for name in {*sys.modules} - before:
        del sys.modules[name]


def test_the_code_is_the_apps_file_and_what_it_loads_from_beside_it(
    made: Callable[..., CodeFingerprint], tmp_path: Path
) -> None:
    name = f"rules_{uuid4().hex}"
    package = tmp_path / f"shop_{uuid4().hex}"
    elsewhere = tmp_path / "site-packages"
    for directory in (package, elsewhere):
        directory.mkdir()
    (package / "__init__.py").write_text("")
    (elsewhere / f"{name}_library.py").write_text("")
    sys.path.append(str(elsewhere))

    code = made(**{name: f"import {package.name}, {name}_library, json"})

    assert [*code.files] == ["app.py", f"{name}.py", f"{package.name}/__init__.py"]


def test_the_same_files_are_the_same_code_wherever_they_lie(
    made: Callable[..., CodeFingerprint], tmp_path: Path
) -> None:
    code = made()
    copy = tmp_path / "copy" / "app.py"
    copy.parent.mkdir()
    copy.write_text((tmp_path / "app.py").read_text())

    CodeFingerprint.compute(copy, load_program(AppRef(copy)).plan()).ensure_equal(code, copy)


def test_a_file_that_has_changed_is_other_code(made: Callable[..., CodeFingerprint], tmp_path: Path) -> None:
    name = f"rules_{uuid4().hex}"
    given = made(**{name: "LIMIT = 1"})

    with pytest.raises(Fatal, match=rf"{name}\.py in {tmp_path} changed since the job was started"):
        made(**{name: "LIMIT = 2"}).ensure_equal(given, tmp_path / "app.py")


def test_a_file_that_only_one_of_them_has_loaded_does_not_count(
    made: Callable[..., CodeFingerprint], tmp_path: Path
) -> None:
    code = made()
    more = CodeFingerprint(code.plan, {**code.files, "chart.py": "1"})

    code.ensure_equal(more, tmp_path / "app.py")
    more.ensure_equal(code, tmp_path / "app.py")


def test_operators_in_another_order_are_another_pipeline(made: Callable[..., CodeFingerprint], tmp_path: Path) -> None:
    given, other = made('["a", "b"]'), made('["b", "a"]')

    with pytest.raises(Fatal, match=r"app\.py builds another pipeline in each process of the job"):
        CodeFingerprint(other.plan, given.files).ensure_equal(given, tmp_path / "app.py")


def test_a_file_that_is_gone_by_then_is_other_code(made: Callable[..., CodeFingerprint], tmp_path: Path) -> None:
    name = f"rules_{uuid4().hex}"
    given = made(**{name: ""})
    (tmp_path / f"{name}.py").unlink()
    plan = load_program(AppRef(tmp_path / "app.py")).plan()

    with pytest.raises(Fatal, match=f"{name}.py"):
        CodeFingerprint.compute(tmp_path / "app.py", plan).ensure_equal(given, tmp_path / "app.py")
