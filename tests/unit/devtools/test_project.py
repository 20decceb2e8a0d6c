"""``kafka-eos init``: the project of each template is complete, and its unit tests pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.project import TEMPLATES, create_project


@pytest.mark.parametrize("template", TEMPLATES)
def test_the_unit_tests_of_a_new_project_pass(template: str, tmp_path: Path) -> None:
    files = create_project(tmp_path / "shop", template)

    samples = {f"samples/{name}.jsonl" for name in TEMPLATES[template].inputs}
    assert {str(file.relative_to(tmp_path / "shop")) for file in files} - samples == {
        *(".dockerignore", ".gitignore", ".github/workflows/test.yml", "Dockerfile", "README.md", "compose.yaml"),
        *("models.py", "pipeline.py", "pyproject.toml", "tests/test_on_broker.py", "tests/test_pipeline.py"),
        "wheels/.gitkeep",
    }
    assert [file for file in files if "PROJECT_" in file.read_text()] == []
    compose = yaml.safe_load((tmp_path / "shop/compose.yaml").read_text())
    assert {"kafka", "topics", "job"} <= compose["services"].keys()
    assert yaml.safe_load((tmp_path / "shop/.github/workflows/test.yml").read_text())["jobs"]["test"]["steps"]
    program = (tmp_path / "shop/pipeline.py").read_text()
    assert [name for name in TEMPLATES[template].inputs if f'KafkaSource("{name}"' not in program] == []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_pipeline.py"]
    done = subprocess.run(command, cwd=tmp_path / "shop", capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_directory_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "mine.txt").touch()

    with pytest.raises(ConfigError, match="is not empty"):
        create_project(tmp_path / "shop", "totals")
    assert [file.name for file in (tmp_path / "shop").iterdir()] == ["mine.txt"]


def test_a_name_that_no_job_can_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="name of the project"):
        create_project(tmp_path / "my shop", "totals")
    with pytest.raises(ConfigError, match="'table' must be one of totals, join, postgres, lake"):
        create_project(tmp_path / "shop", "table")
    assert list(tmp_path.iterdir()) == []
