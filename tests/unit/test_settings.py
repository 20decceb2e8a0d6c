"""Settings have one precedence, and each value knows where it came from."""

import json
from pathlib import Path

import pytest

from kafka_eos import ConfigError
from kafka_eos.settings import Settings


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
        (1, "default"),
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
        ({}, {"zzz": 1}, "known are aligned_timeout, allow_dropped_state"),
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


def test_a_misspelt_variable_is_not_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_EOS_CHECKPOINT_INTERVALL", "1")

    with pytest.raises(ConfigError, match="did you mean KAFKA_EOS_CHECKPOINT_INTERVAL"):
        Settings.resolve()


def test_other_processes_get_the_same_settings_whatever_their_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings.resolve(code={"checkpoint_interval": "250ms"}, cli={"checkpoint_dir": "/data"})
    text = json.dumps(settings.as_json())
    monkeypatch.setenv("KAFKA_EOS_BATCH_SIZE", "7")
    monkeypatch.setenv("KAFKA_EOS_CHECKPOINT_INTERVAL", "7")
    read = Settings.from_json(text)

    assert read.model_dump() == settings.model_dump()
    assert read.origin_of("checkpoint_interval") == "code"


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
