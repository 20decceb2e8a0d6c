"""Settings have one precedence, and each value knows where it came from."""

import json
import queue
from pathlib import Path

import msgspec
import pytest

from kafka_eos import ConfigError, Pipeline
from kafka_eos._util.cpu_quota import usable_cores
from kafka_eos.abc.context import JobContext
from kafka_eos.config.settings import Settings
from kafka_eos.connectors.kafka import KafkaSink, KafkaSource
from kafka_eos.core.ids import AppRef, Term
from kafka_eos.embedded.supervisor_events import SupervisorEvent, WorkerExited
from kafka_eos.embedded.worker_process import WorkerProcess
from kafka_eos.plan.explain import explain
from kafka_eos.runtime.program import CodeFingerprint
from kafka_eos.runtime.worker.control_messages import WorkerConfig
from kafka_eos.testing import ListSource, MemorySink
from tests.waiting import PATIENCE, eventually


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"KAFKA_EOS_{name.upper()}", raising=False)


def test_code_wins_over_cli_over_environment_over_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_EOS_BATCH_SIZE", "3")
    monkeypatch.setenv("KAFKA_EOS_MAX_RESTARTS", "3")
    monkeypatch.setenv("KAFKA_EOS_RETAINED_CHECKPOINTS", "3")
    settings = Settings.resolve(code={"batch_size": 1}, cli={"batch_size": 2, "max_restarts": 2})
    names = ("batch_size", "max_restarts", "retained_checkpoints", "parallelism")

    assert [(getattr(settings, name), settings.origin_of(name)) for name in names] == [
        (1, "code"),
        (2, "cli"),
        (3, "environment"),
        (min(usable_cores(), 128), "default"),
    ]


@pytest.mark.parametrize(
    ("given", "expected"), [(2, 2.0), (0.5, 0.5), ("0.5", 0.5), ("500ms", 0.5), ("10s", 10.0), ("2 m", 120.0)]
)
def test_durations_are_seconds_or_have_a_unit(given: object, expected: float) -> None:
    assert Settings.resolve(code={"checkpoint_interval": given}).checkpoint_interval == expected


@pytest.mark.parametrize("given", ["soon", "-1s", -1, True, float("nan"), float("inf"), None, "1 day"])
def test_anything_else_is_no_duration(given: object) -> None:
    with pytest.raises(ConfigError, match=r"setting checkpoint_interval \(from code\).*duration"):
        Settings.resolve(code={"checkpoint_interval": given})


@pytest.mark.parametrize(
    ("code", "cli", "message"),
    [
        (
            {"checkpoint_intervall": 1},
            {},
            r"'checkpoint_intervall' \(given in code\); did you mean 'checkpoint_interval'",
        ),
        ({}, {"checkpoint_mode": "unaligned", "alignment_spill": "1MB"}, "only aligned barriers block input"),
        ({}, {"zzz": 1}, "known are aligned_timeout, alignment_spill"),
        ({"parallelism": 129}, {}, "less than or equal to 128"),
        ({"batch_size": 0}, {}, "batch_size"),
        ({"state_backend": "redis"}, {}, "rocksdb"),
    ],
)
def test_what_is_wrong_is_named(code: dict[str, object], cli: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Settings.resolve(code, cli)


def test_a_wrong_value_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_EOS_BATCH_SIZE", "many")

    with pytest.raises(ConfigError, match="KAFKA_EOS_BATCH_SIZE"):
        Settings.resolve()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("KAFKA_EOS_CHECKPOINT_INTERVALL", "did you mean KAFKA_EOS_CHECKPOINT_INTERVAL"),
        ("KAFKA_EOS_BOOTSTRAP", "did you mean KAFKA_EOS_BOOTSTRAP_SERVERS"),
        ("KAFKA_EOS_ZZZ", "configuration.md"),
    ],
)
def test_an_unknown_variable_is_not_ignored(monkeypatch: pytest.MonkeyPatch, name: str, hint: str) -> None:
    monkeypatch.setenv(name, "1")

    with pytest.raises(ConfigError, match=hint):
        Settings.resolve()


def test_a_variable_may_be_in_small_letters_and_an_empty_one_gives_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("kafka_eos_max_restarts", "3")
    monkeypatch.setenv("KAFKA_EOS_BATCH_SIZE", "")
    settings = Settings.resolve()

    assert (settings.max_restarts, settings.origin_of("max_restarts")) == (3, "environment")
    assert settings.origin_of("batch_size") == "default"


@pytest.mark.parametrize("name", ["CACHE_DIR", "SERVICE_HOST", "PORT_9092_TCP_ADDR", "FAILPOINTS", "TEST_BROKER"])
def test_variables_of_others_are_left_alone(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(f"KAFKA_EOS_{name}", "1")

    assert Settings.resolve().origin_of("batch_size") == "default"


@pytest.mark.parametrize(
    "address",
    [
        "s3://me:canary-77@bucket/x",
        "s3://bucket/x?secret_access_key=canary-77",
        "s3://bucket/x?api_key=canary-77",
        "s3://bucket/x?X-Api-Key=canary-77",
        "s3://bucket/x?apikey=canary-77",
        "s3://bucket/x?credential=canary-77",
        "s3://bucket/x?sse_customer_key_base64=canary-77",
    ],
)
def test_an_address_with_a_secret_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("KAFKA_EOS_CHECKPOINT_DIR", address)

    with pytest.raises(ConfigError, match="does not belong in an address") as raised:
        Settings.resolve()

    assert "canary-77" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_other_processes_get_the_same_settings_whatever_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.resolve(code={"checkpoint_interval": "250ms"}, cli={"checkpoint_dir": "/data"})
    text = json.dumps(settings.as_json())
    monkeypatch.setenv("KAFKA_EOS_BATCH_SIZE", "7")
    monkeypatch.setenv("KAFKA_EOS_CHECKPOINT_INTERVAL", "7")
    read = Settings.from_json(text)

    assert read.model_dump() == settings.model_dump()
    assert read.origin_of("checkpoint_interval") == "code"


@pytest.mark.parametrize("job", ["audit", "broker", "demo"])
def test_a_job_is_not_kept_where_a_command_keeps_its_own(job: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="or set another checkpoint_dir"):
        Settings.resolve().checkpoint_location(job)

    assert Settings.resolve(code={"checkpoint_dir": tmp_path}).checkpoint_location(job) == tmp_path / job


@pytest.mark.parametrize(("cores", "workers"), [(1, 1), (7, 7), (192, 128)])
def test_without_a_parallelism_there_is_one_worker_a_core(
    monkeypatch: pytest.MonkeyPatch, cores: int, workers: int
) -> None:
    """At most as many as there are key groups; and it is a default, which the Spark engine replaces by its own."""
    monkeypatch.setattr("kafka_eos.config.settings.usable_cores", lambda: cores)
    settings = Settings.resolve()

    assert (settings.parallelism, settings.origin_of("parallelism")) == (workers, "default")


def test_a_worker_has_the_parallelism_of_its_supervisor_whatever_it_could_use_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kafka_eos.config.settings.usable_cores", lambda: 6)
    text = json.dumps(Settings.resolve().as_json())
    monkeypatch.setattr("kafka_eos.config.settings.usable_cores", lambda: 1)
    read = Settings.from_json(text)

    assert (read.parallelism, read.origin_of("parallelism")) == (6, "default")


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Settings.resolve().batch_size = 1


def test_local_state_is_in_the_jobs_directory_unless_it_has_its_own() -> None:
    usual = Settings.resolve(code={"checkpoint_dir": "/data"})
    own = Settings.resolve(code={"checkpoint_dir": "/data", "state_dir": "/fast"})

    assert usual.local_dirs("job") == (Path("/data/job/local"),)
    assert own.local_dirs("job") == (Path("/fast/job"),)
    with pytest.raises(ConfigError, match="pipeline name"):
        usual.job_dir("../up")


SECURED = {"security.protocol": "SASL_SSL", "sasl.username": "ada", "sasl.password": "hunter2"}


def test_settings_of_clients_come_from_code_or_as_json_or_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("# of the cluster\n" + "".join(f"{name} = {value}\n" for name, value in SECURED.items()))
    monkeypatch.setenv("KAFKA_EOS_KAFKA_CONFIG", json.dumps(SECURED))
    from_json = Settings.resolve()
    monkeypatch.setenv("KAFKA_EOS_KAFKA_CONFIG", f"@{file}")

    found = [from_json, Settings.resolve(), Settings.resolve(code={"kafka_config": SECURED})]

    assert [settings.kafka_config for settings in found] == [SECURED] * 3


def test_settings_of_clients_reach_other_processes_whole_and_the_screen_without_secrets() -> None:
    settings = Settings.resolve(code={"kafka_config": SECURED})
    pipeline = Pipeline("p")
    pipeline.source(ListSource([1]), name="in").sink(MemorySink(), name="out")

    assert Settings.from_json(json.dumps(settings.as_json())).kafka_config == SECURED
    shown = f"{settings} {settings!r} {settings.kafka_config} {explain(pipeline.plan(), settings)}"
    assert "hunter2" not in shown and "ada" in shown


@pytest.mark.parametrize("given", ["hunter2", "[1]", "@/nowhere", {"sasl.password": ["hunter2"]}, 3])
def test_what_is_no_setting_of_clients_is_refused_without_showing_it(given: object) -> None:
    with pytest.raises(ConfigError, match="setting kafka_config") as caught:
        Settings.resolve(code={"kafka_config": given})

    assert "hunter2" not in str(caught.value)


def test_a_connector_has_the_jobs_settings_and_its_own_go_first() -> None:
    ctx = JobContext("job", Term(1), Settings.resolve(code={"kafka_config": SECURED}).connector_defaults())
    own = KafkaSource("in", config={"sasl.username": "bob", "client.id": "x"})

    assert own.audit_logs(ctx, ())[0][2] == {**SECURED, "sasl.username": "bob", "client.id": "x"}
    assert KafkaSink("out").scope(ctx) == "kafka://ada@127.0.0.1:9092"
    assert KafkaSink.dead_letters("letters").audit_log(ctx)[2] == SECURED


def test_what_a_guarantee_depends_on_is_refused_in_the_jobs_settings_too() -> None:
    ctx = JobContext("job", Term(1), Settings.resolve(code={"kafka_config": {"acks": "0"}}).connector_defaults())

    with pytest.raises(ConfigError, match=r"kafka_config\['acks'\] cannot be set"):
        KafkaSink("out").scope(ctx)


def test_a_workers_command_line_shows_no_secret(tmp_path: Path) -> None:
    """Anybody on the machine can list it."""
    app = tmp_path / "app.py"
    app.write_text(
        "from kafka_eos import Pipeline\nfrom kafka_eos.testing import ListSource, MemorySink\n"
        "pipeline = Pipeline('p')\npipeline.source(ListSource([1]), name='in').sink(MemorySink(), name='out')\n"
    )
    settings = Settings.resolve(code={"kafka_config": SECURED, "checkpoint_dir": tmp_path})
    events = queue.SimpleQueue[SupervisorEvent]()
    given = WorkerConfig("p", json.dumps(settings.as_json()), CodeFingerprint("", {}))
    worker = WorkerProcess(0, 0, AppRef(app, "p"), msgspec.json.encode(given), events)
    try:
        shown = eventually(Path(f"/proc/{worker.pid}/cmdline").read_bytes, "the process has a command line")
    finally:
        worker.kill()

    assert b"kafka_eos.embedded.worker_main" in shown and b"hunter2" not in shown
    eventually(lambda: isinstance(events.get(timeout=PATIENCE), WorkerExited), "its exit arrives")
