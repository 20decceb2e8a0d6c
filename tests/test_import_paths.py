"""What is ours is imported in one way: no file is there under two names."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("kafka_eos", "connectors", "schemas", "docker", "docs", "benchmarks", "requirements", "tests")

PUBLIC = ("abc", "codecs", "savepoints", "spark", "structured_streaming", "testing")
"""Packages that users and authors import from, beside ``kafka_eos`` and the connectors."""

TWICE = """
import os, pkgutil, sys
from importlib import import_module

import kafka_eos

PROGRAMS = ("__main__", "worker_main", "replay_pipeline", "three_systems", "parent_death")
for module in pkgutil.walk_packages(kafka_eos.__path__, "kafka_eos."):
    if module.name.rpartition(".")[2] not in PROGRAMS:
        import_module(module.name)
names = {}
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file and name.split(".")[0] in ("kafka_eos", "connectors", "schemas"):
        names.setdefault(os.path.realpath(file), []).append(name)
print(len(names) > 500, [each for each in names.values() if len(each) > 1])
"""


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.campaign  # imports everything, Spark and the clients of all systems too
def test_no_file_is_imported_under_two_names() -> None:
    done = run(TWICE)

    assert (done.stdout, done.returncode) == ("True []\n", 0), done.stderr


def test_the_connectors_are_reached_through_the_package_alone() -> None:
    done = run("import connectors.kafka")

    assert done.returncode == 1
    assert "ImportError: import kafka_eos.connectors instead: the folder connectors/ is part of" in done.stderr


def test_one_link_is_in_the_tree() -> None:
    links = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*") if path.is_symlink()]

    assert [str(link.relative_to(ROOT)) for link in links] == ["kafka_eos/connectors"]


def test_schemas_has_no_code() -> None:
    assert {path.suffix for path in (ROOT / "schemas").iterdir() if path.name != "__pycache__"} == {".avsc", ".md"}


@pytest.mark.parametrize("package", PUBLIC)
def test_a_public_package_lists_its_names(package: str) -> None:
    module = import_module(f"kafka_eos.{package}")

    assert [name for name in module.__all__ if not hasattr(module, name)] == []
