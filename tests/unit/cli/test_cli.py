"""What a user sees: tables on stdout; if something is wrong one paragraph, an exit code, and nothing left behind."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import typer

from kafka_eos._util.cpu_quota import usable_cores
from kafka_eos.audit.facts.job_ledger import read_ledger
from kafka_eos.cli import LazyCommandGroup, app
from kafka_eos.coordination import job_history as history
from kafka_eos.coordination.job_history import History
from kafka_eos.coordination.job_lock import job_lock
from kafka_eos.storage import job_records as records
from kafka_eos.storage import object_names as paths
from kafka_eos.storage.job_records import Manifest, TermBase, TermClaim
from kafka_eos.storage.job_storage import LocalStorage

JOB = "copy"
NOWHERE = "127.0.0.1:1"
APP = """
from kafka_eos import Pipeline
from kafka_eos.connectors.kafka import KafkaSource
from kafka_eos.connectors.files import FileSink

pipeline = Pipeline("copy")
pipeline.source(KafkaSource("in"), name="in").sink(FileSink("out"), name="out")

if __name__ == "__main__":
    pipeline.run(batch_sizes=1)
"""


def python(directory: Path, *arguments: str) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of Python, run in a directory of its own."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(("KAFKA_EOS_", "COLUMNS"))}
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=directory, env=env, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def kafka_eos(directory: Path, *arguments: str) -> tuple[int, str, str]:
    return python(directory, "-m", "kafka_eos", *arguments)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "app.py").write_text(APP)
    return tmp_path


@pytest.fixture
def storage(home: Path) -> LocalStorage:
    """A job that decided epochs 0 and 1."""
    (home / ".kafka-eos").mkdir()
    stored = LocalStorage(home / ".kafka-eos" / JOB)
    records.publish(stored, TermClaim(job=JOB, term=1, host="here", pid=1, at=0))
    records.publish(stored, TermBase(job=JOB, term=1, resumed=None, reason="first start", at=0))
    for epoch in (0, 1):
        records.publish(
            stored,
            Manifest(
                job=JOB, epoch=epoch, term=1, created_at=0, plan="0" * 64, max_key_groups=128, parallelism=1,
                sources={"in": {}}, states=(), committables=(), identity="0123456789ab",
            ),
        )  # fmt: skip
    return stored


def test_a_script_explains_an_error_as_the_command_does(home: Path) -> None:
    code, _, shown = python(home, "app.py")

    assert (code, shown.count("\n")) == (2, 1)
    assert shown.startswith("ConfigError: there is no setting 'batch_sizes'")


def test_a_library_call_raises(home: Path) -> None:
    code, out, _ = python(
        home,
        "-c",
        "import app, kafka_eos\ntry: app.pipeline.run(batch_sizes=1)\nexcept kafka_eos.ConfigError: print('raised')",
    )

    assert (code, out) == (0, "raised\n")


def test_a_message_is_not_wrapped(home: Path) -> None:
    missing = "/".join(["a-long-directory-name"] * 8) + "/app.py"

    assert missing in kafka_eos(home, "explain", missing)[2]


@pytest.mark.parametrize(
    ("text", "error", "line"),
    [
        ("x = 1\ny = nope\n", "NameError: name 'nope' is not defined", "broken.py, line 2\n    y = nope"),
        ("x = 1\n\nx = = 2\n", "SyntaxError: invalid syntax", "broken.py, line 3\n    x = = 2"),
        ("import no_such_module\n", "ModuleNotFoundError: No module named 'no_such_module'", "broken.py, line 1"),
        ("import helper\n", "ZeroDivisionError: division by zero", "helper.py, line 1\n    1 / 0"),
    ],
)
def test_a_file_that_cannot_be_imported_is_explained(home: Path, text: str, error: str, line: str) -> None:
    (home / "broken.py").write_text(text)
    (home / "helper.py").write_text("1 / 0\n")

    code, _, shown = kafka_eos(home, "explain", "broken.py")

    assert code == 2
    assert shown.startswith("PlanError: ") and error in shown and line in shown
    assert "Traceback" not in shown


def test_a_damaged_epoch_does_not_hide_the_others(home: Path, storage: LocalStorage) -> None:
    damaged = storage.root / storage.list(paths.MANIFESTS)[0]
    damaged.write_bytes(damaged.read_bytes()[:-1])

    code, shown, _ = kafka_eos(home, "checkpoints", "list", JOB)

    rows = [line for line in shown.splitlines() if line.startswith("│")]
    assert (code, len(rows)) == (0, 2)
    assert f"damaged: {paths.MANIFESTS}/{damaged.name}" in rows[0]
    assert "damaged" not in rows[1]


def test_a_job_that_never_started_has_no_checkpoints(home: Path) -> None:
    (home / ".kafka-eos" / JOB).mkdir(parents=True)

    code, _, shown = kafka_eos(home, "checkpoints", "list", JOB)

    assert code == 2
    assert "no job 'copy'" in shown and "--checkpoint-dir" in shown
    assert list((home / ".kafka-eos" / JOB).iterdir()) == []


@pytest.mark.parametrize(("command", "expected"), [("audit", 2), ("doctor", 0)])
def test_a_mistyped_checkpoint_dir_is_not_made(home: Path, command: str, expected: int) -> None:
    code, out, err = kafka_eos(home, command, "app.py", "--checkpoint-dir", "mistyped")
    shown = out + err

    assert code == expected
    assert f"no checkpoints of a job 'copy' in {home / 'mistyped'}" in shown
    assert "Spark" not in shown
    assert not (home / "mistyped").exists()


def test_doctor_says_what_to_do_if_it_cannot_end(home: Path) -> None:
    (home / "out").mkdir()
    staged = home / "out" / f".staged.{JOB}.1.1.0.out"
    staged.touch()

    code, table, shown = kafka_eos(home, "doctor", "app.py", "--resolve")

    assert code == 2
    assert staged.name in table and "nothing was resolved" in shown and "kafka-eos run app.py" in shown
    assert staged.exists()


@pytest.mark.parametrize(
    ("options", "count", "why"),
    [((), min(usable_cores(), 128), " (default: one per core)"), (("-p", "1"), 1, "")],
)
def test_a_run_says_how_many_workers_it_has_and_whom_it_asks(
    home: Path, options: Sequence[str], count: int, why: str
) -> None:
    text = APP.replace("connectors.files", "connectors.kafka").replace("FileSink", "KafkaSink")
    (home / "app.py").write_text(text)
    command = [sys.executable, "-m", "kafka_eos", "run", "app.py", "-b", NOWHERE, *options]
    env = {name: value for name, value in os.environ.items() if not name.startswith("KAFKA_EOS_")}
    with subprocess.Popen(command, cwd=home, env={**env, "COLUMNS": "500"}, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        first = [run.stderr.readline() for _ in range(2)]
        run.kill()

    assert re.match(rf"starting {JOB} with {count} workers?{re.escape(why)}, checkpoints in ", first[0])
    assert first[1] == f"connecting to Kafka at {NOWHERE} …\n"


def test_a_start_that_the_jobs_lock_refuses_does_not_say_that_it_runs(home: Path) -> None:
    directory = home / ".kafka-eos" / JOB
    directory.mkdir(parents=True)
    with job_lock(directory / paths.LOCK, JOB):
        code, _, shown = kafka_eos(home, "run", "app.py", "-b", NOWHERE)

    assert code != 0 and "JobLocked" in shown
    assert f"starting {JOB}" not in shown and "connecting" not in shown


def test_a_torn_line_of_the_diary_is_left_out(storage: LocalStorage) -> None:
    diary = History(storage, print)
    diary.append_event("started")
    with (storage.root / paths.HISTORY).open("a") as log:
        log.write('{"event": "comm')
    diary.append_event("committed", epoch=1, term=1, records={"file://out": 3})

    assert [event["event"] for event in history.read_events(storage)] == ["started", "committed"]
    records = read_ledger(storage, JOB, storage.root).records
    assert [recorded.total for recorded in records.values()] == [3]


# ---------------------------------------------------------------- what is imported, and where things are printed

HEAVY = ("confluent_kafka", "kafka", "rocksdict", "fastavro", "pydantic", "msgspec", "pyspark", "pyarrow", "pandas",
         "kafka_eos.api", "kafka_eos.config.settings", "kafka_eos.coordination")  # fmt: skip
SHOWN = """
import sys
sys.argv = ["kafka-eos", *sys.argv[1:]]
from kafka_eos.cli import main
try:
    main()
except SystemExit:
    print(*sys.modules, file=sys.stderr)
"""


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_who_asks_for_help_waits_for_nothing_that_runs_jobs(tmp_path: Path, argument: str) -> None:
    code, shown, modules = python(tmp_path, "-c", SHOWN, argument)

    assert code == 0 and "kafka-eos" in shown
    assert [module for module in HEAVY if module in modules.split()] == []


def test_the_list_of_commands_says_what_each_says_itself() -> None:
    root = typer.main.get_command(app)
    assert isinstance(root, LazyCommandGroup)

    for name, shown in root.commands.items():
        whole = root.load(name).help or ""
        assert " ".join(whole.partition("\n\n")[0].split()) == shown.help


def test_a_table_goes_to_stdout_and_nothing_else(home: Path, storage: LocalStorage) -> None:
    code, shown, said = kafka_eos(home, "checkpoints", "list", JOB)

    assert code == 0 and said == ""
    assert [line for line in shown.splitlines() if "epoch" in line and "decided" in line]


def test_a_start_without_its_schema_registry_says_nothing_of_kafka(home: Path) -> None:
    (home / "app.py").write_text(
        "from dataclasses import dataclass\n"
        "from kafka_eos import Pipeline\n"
        "from kafka_eos.connectors.kafka import KafkaSink, KafkaSource\n"
        "from kafka_eos.codecs import Registry, avro\n"
        "@dataclass\n"
        "class Line:\n"
        "    quantity: int\n"
        f"registry = Registry('http://{NOWHERE}', config={{'max.retries': 0}})\n"
        "pipeline = Pipeline('lines')\n"
        "lines = pipeline.source(KafkaSource('in', value=Line), name='in')\n"
        "lines.sink(KafkaSink('out', value=avro(Line, registry=registry)), name='out')\n"
    )

    code, _, shown = kafka_eos(home, "run", "app.py", "-b", NOWHERE)

    assert code == 1, "systemd starts it again, and not what ends with 2"
    told = " ".join(shown.split())
    assert f"the schema registry http://{NOWHERE} does not respond" in told
    assert "Check that the registry runs at that address" in told
    assert "bootstrap_servers" not in told


def test_a_start_whose_directory_cannot_be_made_says_so(home: Path) -> None:
    code, _, said = kafka_eos(home, "run", "app.py", "-b", NOWHERE, "--checkpoint-dir", "app.py")

    told = " ".join(said.split())
    assert code == 2
    assert f"ConfigError: the directory {home / 'app.py' / JOB} cannot be used: Not a directory. Give this user" in told
    assert "Traceback" not in told


def test_what_a_users_file_holds_open_is_written_when_the_command_ends(tmp_path: Path) -> None:
    """Also what only the last search for cycles finds."""
    app = tmp_path / "noted.py"
    app.write_text(
        "from kafka_eos import Pipeline\nfrom kafka_eos.testing import ListSource, MemorySink\n"
        "class Notes: ...\n"
        f"notes = Notes()\nnotes.again, notes.file = notes, open({str(tmp_path / 'notes')!r}, 'w')\n"
        "notes.file.write('kept')\n"
        "pipeline = Pipeline('p')\npipeline.source(ListSource([1]), name='in').sink(MemorySink(), name='out')\n"
    )

    command = [sys.executable, "-m", "kafka_eos", "explain", str(app)]
    subprocess.run(command, capture_output=True, timeout=120, check=True)

    assert (tmp_path / "notes").read_text() == "kept"
