"""What the engine says before anything starts: of settings, and of a machine that is not set up."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
import pytest
from pyspark.errors import PySparkException

from kafka_eos.config.settings import Settings
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.plan.worker_memory import WorkerMemory
from kafka_eos.runtime.program import load_program
from kafka_eos.spark import SparkEngine, session
from kafka_eos.spark.spark_errors import advise_on_setup, translate_error
from tests.marks import campaign
from tests.waiting import PATIENCE

FLAT = """
from kafka_eos import Pipeline
from kafka_eos.testing import ListSource, MemorySink

pipeline = Pipeline("flat")
keyed = pipeline.source(ListSource([1, 2]), name="in").key_by(str, name="by-number", values=int)
keyed.fold(name="sum", init=int, step=lambda total, n: total + n).sink(MemorySink(), name="out")
"""
BLOCKED = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("pyspark", "py4j"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


def kafka_eos(directory: Path, *arguments: str, **environment: str) -> tuple[int, str, str]:
    """Exit code, standard output, standard error in one line."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_EOS_", "COLUMNS"))}
    command = [sys.executable, "-m", "kafka_eos", *arguments]
    done = subprocess.run(
        command,
        cwd=directory,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    return done.returncode, done.stdout, " ".join(done.stderr.split())


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "flat.py").write_text(FLAT)
    return tmp_path


def test_speculation_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"spark\.speculation=false"):
        session.refuse_unsafe({"spark.speculation": "TRUE"}.get)
    session.refuse_unsafe({}.get)


def test_a_session_that_kills_python_workers_without_results_is_refused() -> None:
    given = {"spark.python.worker.killOnIdleTimeout": "true"}
    session.refuse_idle_timeout(given.get)
    given["spark.python.worker.idleTimeoutSeconds"] = "60"

    with pytest.raises(ConfigError, match="kill each worker of the job 60 s after its start"):
        session.refuse_idle_timeout(given.get)


@pytest.mark.parametrize(
    ("size", "cores", "enough"),
    [("3g", None, True), ("3071m", None, False), ("3072", None, True), ("6g", "2", True), ("6143M", "2", False),
     ("3145728KB", None, True), ("1t", "4", True)],
)  # fmt: skip
def test_an_address_space_that_is_too_small_for_a_worker_is_refused(size: str, cores: str | None, enough: bool) -> None:
    given = {"spark.executor.pyspark.memory": size, "spark.executor.cores": cores}

    if enough:
        session.refuse_small_address_space(given.get, WorkerMemory(1 << 30, 0, 0))
        return
    with pytest.raises(ConfigError, match=f"{size} limits the address space of each worker to 3071 MiB"):
        session.refuse_small_address_space(given.get, WorkerMemory(1 << 30, 0, 0))


def test_an_address_space_without_a_limit_is_enough_and_one_that_is_no_size_is_refused() -> None:
    session.refuse_small_address_space({}.get, WorkerMemory(1 << 40, 0, 0))
    with pytest.raises(ConfigError, match="Spark accepts sizes such as 4g"):
        session.refuse_small_address_space({"spark.executor.pyspark.memory": "much"}.get, WorkerMemory(0, 0, 0))


# ---------------------------------------------------------------- the machine


def test_a_java_that_is_not_there(home: Path) -> None:
    code, _, shown = kafka_eos(home, "run", "flat.py", "--engine", "spark", JAVA_HOME="/nowhere")

    assert code == 2
    assert "ConfigError: Spark needs Java 17 or newer, and none was found (JAVA_HOME=/nowhere)" in shown


@pytest.mark.campaign
@pytest.mark.parametrize("version", [campaign("1.8.0_362"), "11.0.22"])
def test_a_java_that_is_too_old(home: Path, version: str) -> None:
    java = home / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2022-01-18' >&2\n")
    java.chmod(0o755)

    code, _, shown = kafka_eos(home, "run", "flat.py", "--engine", "spark", JAVA_HOME=str(home / "jdk"))

    assert code == 2
    assert f"ConfigError: Spark needs Java 17 or newer; {java} says" in shown and version in shown
    assert "Traceback" not in shown


def test_pyspark_that_is_not_installed(home: Path) -> None:
    (home / "site").mkdir()
    (home / "site" / "sitecustomize.py").write_text(BLOCKED)
    path = os.pathsep.join([str(home / "site"), os.environ.get("PYTHONPATH", "")])

    code, _, shown = kafka_eos(home, "run", "flat.py", "--engine", "spark", PYTHONPATH=path)

    assert code == 2
    assert "ConfigError: the Spark engine needs pyspark: pip install 'kafka-eos[spark]'" in shown
    assert "Traceback" not in shown


@pytest.mark.timeout(300)
@pytest.mark.campaign
def test_a_python_of_another_version(home: Path, other_python: str) -> None:
    code, _, shown = kafka_eos(
        home, "run", "flat.py", "--engine", "spark", "--master", "local[1]", "--until-caught-up",
        PYSPARK_PYTHON=other_python, SPARK_LOCAL_IP="127.0.0.1",
    )  # fmt: skip

    assert code == 2, shown
    assert f"ConfigError: tasks run '{other_python}' (PYSPARK_PYTHON), this program '{sys.executable}'" in shown, shown
    assert "driver and executors need the same Python version: set PYSPARK_PYTHON" in shown
    assert "restarting" not in shown, "it was tried again"


@pytest.fixture
def other_python() -> str:
    """One of another minor version that this Spark can start; found in PATH, or where pyenv keeps them."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in (10, 11, 12, 13, 14):
        found = [shutil.which(f"python3.{minor}"), *map(str, pyenv.glob(f"3.{minor}.*/bin/python"))]
        for python in filter(None, found):
            said = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
            if minor != sys.version_info.minor and said.stdout.startswith(f"Python 3.{minor}."):
                return python
    pytest.skip("there is no other Python on this machine")


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("pyspark.errors.exceptions.base.PySparkRuntimeError: [PYTHON_VERSION_MISMATCH] 3.12", "need the same Python"),
        ("ModuleNotFoundError: No module named 'kafka_eos'", "executors cannot import kafka_eos: install it"),
        ('java.io.IOException: Cannot run program "/opt/python"', "executors cannot start Python"),
    ],
)
def test_what_a_cluster_says_that_is_not_set_up(said: str, advice: str) -> None:
    error = PySparkException(f"Job aborted due to stage failure\n{said}\n\tat org.apache.spark.Somewhere")

    for ours in (translate_error(error), advise_on_setup(error)):
        assert isinstance(ours, ConfigError)
        assert advice in str(ours) and said in str(ours)
    assert advise_on_setup(ValueError(said)) is None


@pytest.mark.campaign
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("master", "said"),
    [
        ("nonsense", "Java gateway process exited"),
        campaign("local[x]", "Could not parse Master URL: 'local[x]'"),
        campaign("spark://127.0.0.1:1", "stopped SparkContext"),
    ],
)
def test_a_master_that_is_not_there(master: str, said: str, home: Path) -> None:
    code, _, shown = kafka_eos(home, "run", "flat.py", "--engine", "spark", "--master", master)

    assert code == 2, shown
    assert f"ConfigError: Spark does not start on {master}: " in shown and said in shown
    assert "Traceback" not in shown


def test_spark_and_pyspark_of_different_versions(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.1.1")

    with pytest.raises(ConfigError, match=f"pip install 'pyspark=={spark.version}', the same on driver and executors"):
        session.check(spark)


# ---------------------------------------------------------------- the session


@pytest.mark.parametrize("master", [None, "local[1]"])
def test_a_live_session_that_was_not_passed_is_left_alone(master: str | None, home: Path, spark: Any) -> None:
    app = AppRef(home / "flat.py")

    with pytest.raises(ConfigError, match=r"Pass it: SparkEngine\(session\)"):
        SparkEngine(master=master).run(load_program(app).plan(), app, Settings.resolve(code={"checkpoint_dir": home}))

    assert spark.range(3).count() == 3


def test_a_submitted_programs_own_session_is_used_and_left_open(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")

    with session.open_engine_session(None, None, "job") as found:
        assert found.sparkContext is spark.sparkContext

    assert spark.range(3).count() == 3
