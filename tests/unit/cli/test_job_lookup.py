"""What a command takes for a job: its name, its directory, or what defines its pipeline."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kafka_eos.cli.options import locate_job, open_app, resolve_job
from kafka_eos.coordination.status_file import STATUS, StatusFile
from kafka_eos.core.errors import ConfigError

APP = """
from kafka_eos import Pipeline
from kafka_eos.testing import ListSource, MemorySink

def build():
    pipeline = Pipeline("totals")
    pipeline.source(ListSource([1]), name="in").sink(MemorySink(), name="out")
    return pipeline
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with the file of a pipeline, and the directory of its job, which has run once."""
    monkeypatch.chdir(tmp_path)
    app = tmp_path / "shop_lookup.py"
    app.write_text(APP)
    (tmp_path / ".kafka-eos/totals").mkdir(parents=True)
    StatusFile(tmp_path / ".kafka-eos/totals")("started", {"job": "totals", "app": f"{app}:build"})
    return tmp_path


@pytest.mark.parametrize("given", ["totals", ".kafka-eos/totals", "shop_lookup.py:build", "shop_lookup:build"])
def test_a_job_is_found_by_what_people_have_in_hand(home: Path, given: str) -> None:
    name, settings = resolve_job(given)
    program, _ = open_app(given)

    assert (name, settings.job_dir(name), program.name) == ("totals", home / ".kafka-eos/totals", "totals")


def test_a_directory_of_a_job_says_where_its_checkpoints_are(home: Path) -> None:
    elsewhere = home / "prod"
    (home / ".kafka-eos").rename(elsewhere)

    assert locate_job("prod/totals", None) == ("totals", str(elsewhere))
    assert open_app(str(elsewhere / "totals"))[1].job_dir("totals") == elsewhere / "totals"


def test_what_is_nothing_of_these_is_told_with_all_that_was_tried(home: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve_job("total")

    for part in ("jobs there: totals", str(home / "total"), "kafka-eos list", "orders.py"):
        assert part in str(caught.value)


def test_a_command_that_needs_the_code_asks_for_it_if_the_job_has_not_recorded_it(home: Path) -> None:
    status = home / ".kafka-eos/totals" / STATUS
    status.write_text(json.dumps({**json.loads(status.read_text()), "last": {}}))

    assert resolve_job("totals")[0] == "totals"
    with pytest.raises(ConfigError, match="Give the file"):
        open_app("totals")


def test_a_job_whose_file_defines_another_one_by_now_is_not_taken_for_that_one(home: Path) -> None:
    """A reset of the one would reset the other."""
    (home / "shop_lookup.py").write_text(APP.replace("totals", "sums"))

    with pytest.raises(ConfigError, match="which defined the job 'totals' in its last run, now defines 'sums'"):
        open_app("totals")
    assert open_app("shop_lookup.py:build")[0].name == "sums"
