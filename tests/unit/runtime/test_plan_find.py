"""Every process of a job imports the user's file and must find its pipeline there."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from kafka_eos import ConfigError, PlanError
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
        (ONE, "three", "no pipeline named 'three'; it defines one"),
        (ONE + 'second = Pipeline("one")\n', "one", "several pipelines named 'one'"),
    ],
)
def test_what_cannot_be_found_is_explained(tmp_path: Path, text: str, name: str | None, message: str) -> None:
    app = module(tmp_path, text)

    with pytest.raises(PlanError, match=message):
        find(app, name)


BUILD = 'from kafka_eos import Pipeline\ndef build():\n    return Pipeline("one")\n'


def written(tmp_path: Path, text: str, name: str = "orders.py") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def test_a_function_that_returns_the_pipeline_is_called_by_each_process(tmp_path: Path) -> None:
    path = written(tmp_path, BUILD)

    program = load_program(AppRef.parse(f"{path}:build"))

    assert program.name == "one"
    assert program.app == AppRef(path, "build")
    assert load_program(program.app) is not program


def test_a_function_of_another_file_is_found_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    written(tmp_path, "from kafka_eos import Pipeline\ndef make(name):\n    return Pipeline(name)\n", "other_file.py")
    path = written(tmp_path, "import other_file\ndef build():\n    return other_file.make('two')\n")

    program = load_program(AppRef.parse(f"{path}:build"))

    assert program.app == AppRef(path, "build")


def test_a_module_in_packages_is_found_and_imports_what_is_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    written(tmp_path, "", "shop_of_test/__init__.py")
    written(tmp_path, "", "shop_of_test/jobs/__init__.py")
    written(tmp_path, 'NAME = "three"\n', "shop_of_test/names.py")
    text = "from ..names import NAME\nfrom kafka_eos import Pipeline\ndef build():\n    return Pipeline(NAME)\n"
    path = written(tmp_path, text, "shop_of_test/jobs/orders.py")

    program = load_program(AppRef.parse("shop_of_test.jobs.orders:build"))

    assert (program.name, program.app) == ("three", AppRef(path, "build"))
    assert load_program(AppRef.parse(str(program.app))).name == "three"


def test_a_function_that_runs_its_pipeline_is_not_called_by_other_processes(tmp_path: Path) -> None:
    text = 'from kafka_eos import Pipeline\ndef main():\n    return Pipeline("one").app\n'
    app = module(tmp_path, text)

    assert app.main() == AppRef(tmp_path / "app.py", "one")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def build():\n    return 7\n", r"build\(\) of .*orders\.py returns 7, not a Pipeline"),
        ("def build(name):\n    return name\n", r"build\(\) of .* is called without arguments: give each"),
        ("def build():\n    return {}['x']\n", r"failed: KeyError: 'x'\n  .*orders\.py, line 2\n    return"),
        ("def job():\n    return 7\n", r"defines no pipeline; .*FILE\.py:FUNCTION"),
    ],
)  # fmt: skip
def test_a_function_that_makes_no_pipeline_is_explained(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)

    with pytest.raises(PlanError, match=message):
        load_program(AppRef.parse(f"{path}:build"))


def test_code_that_is_in_no_file_is_explained(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"MODULE:FUNCTION .* Code of a notebook must be in a file"):
        load_program(AppRef.parse("no_such_module:build"))
