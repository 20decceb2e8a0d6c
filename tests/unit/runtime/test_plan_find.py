"""Every process of a job imports the user's file and must find its pipeline there."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from kafka_eos import PlanError
from kafka_eos.core.ids import AppRef
from kafka_eos.runtime.program import find, load_program

ONE = 'from kafka_eos import Pipeline\nfirst = Pipeline("one")\n'


def module(tmp_path: Path, text: str, name: str = "user_app") -> ModuleType:
    path = tmp_path / "app.py"
    path.write_text(text, encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def test_the_only_pipeline_needs_no_name(tmp_path: Path) -> None:
    app = module(tmp_path, ONE)

    assert find(app) is app.first
    assert app.first.app.path == tmp_path / "app.py"


def test_one_of_several_is_found_by_variable_and_by_name(tmp_path: Path) -> None:
    app = module(tmp_path, ONE + 'second = Pipeline("two")\n')

    assert find(app, "second") is app.second
    assert find(app, "two") is app.second


def test_a_pipeline_that_is_kept_out_of_sight_is_found(tmp_path: Path) -> None:
    app = module(tmp_path, 'from kafka_eos import Pipeline\nkept = [Pipeline("hidden")]\n')

    assert find(app) is app.kept[0]


def test_the_same_file_under_another_name_has_its_own_pipeline(tmp_path: Path) -> None:
    main, worker = module(tmp_path, ONE, "app_main"), module(tmp_path, ONE, "app_worker")

    assert find(main) is main.first
    assert find(worker) is worker.first


def test_a_pipeline_that_another_file_makes_is_loaded_from_the_file_that_holds_it(tmp_path: Path) -> None:
    (tmp_path / "shared_by_jobs.py").write_text(
        "from kafka_eos import Pipeline\ndef make(name):\n    return Pipeline(name)\n", encoding="utf-8"
    )
    (tmp_path / "job.py").write_text('import shared_by_jobs\njob = shared_by_jobs.make("one")\n', encoding="utf-8")

    program = load_program(AppRef.parse(str(tmp_path / "job.py")))

    assert program.app.path == tmp_path / "job.py"
    assert load_program(program.app).name == "one"


@pytest.mark.parametrize(
    ("text", "name", "message"),
    [
        ("", None, "defines no pipeline"),
        (ONE + 'second = Pipeline("two")\n', None, r"several pipelines \(one, two\)"),
        (ONE, "three", "no pipeline named 'three'; it makes one"),
        (ONE + 'second = Pipeline("one")\n', "one", "several pipelines named 'one'"),
    ],
)
def test_what_cannot_be_found_is_explained(tmp_path: Path, text: str, name: str | None, message: str) -> None:
    app = module(tmp_path, text)

    with pytest.raises(PlanError, match=message):
        find(app, name)
