"""Settings from a file: where it is found, what a profile replaces, and that nothing in it is passed over."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kafka_eos import ConfigError
from kafka_eos._util.secrets import read_secret_files
from kafka_eos.cli import app
from kafka_eos.config.settings import Settings
from tests.test_docs import ROOT

FILE = """
checkpoint_interval = "500ms"
batch_size = 7

[kafka_config]
sasl.username = "ada"
sasl.password.from_file = "password"
"client.id" = "jobs"

[profiles.production]
batch_size = 9
max_restarts = 3

[profiles.alone]
kafka_config = {"client.id" = "other"}
"""
PASSWORD = "hunter2"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory without any settings, and an environment without them."""
    for name in (*Settings.model_fields, "config_file", "profile"):
        monkeypatch.delenv(f"KAFKA_EOS_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "password").write_text(f"{PASSWORD}\n")
    return tmp_path


def test_a_file_goes_before_defaults_and_behind_all_else(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "kafka-eos.toml").write_text("batch_size = 1\nmax_restarts = 1\nretained_checkpoints = 1\nhttp = 'a:1'\n")
    monkeypatch.setenv("KAFKA_EOS_BATCH_SIZE", "2")
    settings = Settings.resolve(code={"retained_checkpoints": 3}, cli={"max_restarts": 4})
    names = ("batch_size", "max_restarts", "retained_checkpoints", "http", "stop_timeout")

    assert [(getattr(settings, name), settings.origin_of(name)) for name in names] == [
        (2, "environment"), (4, "cli"), (3, "code"), ("a:1", "file"), (30.0, "default"),
    ]  # fmt: skip


def test_a_profile_replaces_setting_by_setting(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "kafka-eos.toml").write_text(FILE)
    found = []
    for profile in ("", "production", "alone"):
        monkeypatch.setenv("KAFKA_EOS_PROFILE", profile)
        found.append(Settings.resolve())

    client = {"sasl.username": "ada", "sasl.password.from_file": str(here / "password"), "client.id": "jobs"}
    assert [(s.checkpoint_interval, s.batch_size, s.max_restarts, s.kafka_config) for s in found] == [
        (0.5, 7, 10, client), (0.5, 9, 3, client), (0.5, 7, 10, {"client.id": "other"}),
    ]  # fmt: skip


def test_the_table_of_a_project_is_a_file_too_and_one_elsewhere_is_named(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "pyproject.toml").write_text("[project]\nname = 'x'\n")
    without = Settings.resolve().origin_of("batch_size")
    (here / "pyproject.toml").write_text("[tool.kafka-eos]\nbatch_size = 4\n[tool.kafka-eos.profiles.p]\n")
    of_project = Settings.resolve().batch_size
    (here / "other.toml").write_text("batch_size = 5\n")
    monkeypatch.setenv("KAFKA_EOS_CONFIG_FILE", str(here / "other.toml"))

    assert (without, of_project, Settings.resolve().batch_size) == ("default", 4, 5)


@pytest.mark.parametrize(
    ("files", "environment", "why"),
    [
        ({"kafka-eos.toml": "batch_size = = 1"}, {}, r"kafka-eos.toml is not valid TOML: .*line 1"),
        ({"kafka-eos.toml": "batch_sizes = 1"}, {}, r"'batch_sizes' \(given in kafka-eos.toml\); did you mean"),
        ({"kafka-eos.toml": "[profiles.p]\nx_y = 1"}, {}, r"'x_y' \(given in kafka-eos.toml, profile p\)"),
        ({"kafka-eos.toml": "batch_size = 0"}, {}, r"setting batch_size \(from kafka-eos.toml\): .*got 0"),
        ({"kafka-eos.toml": "[profiles.p]\nbatch_size = 0"}, {"PROFILE": "p"}, r"\(from kafka-eos.toml, profile p\)"),
        ({"kafka-eos.toml": "profiles = 1"}, {}, r"profiles in kafka-eos.toml is not a table; write \[profiles\]"),
        ({"kafka-eos.toml": "profiles.p = 1"}, {}, r"profiles.p in kafka-eos.toml is not a table"),
        (
            {"kafka-eos.toml": "[profiles.p]"},
            {"PROFILE": "q"},
            r"profile 'q' .* does not exist: kafka-eos.toml has only p",
        ),
        ({"kafka-eos.toml": ""}, {"PROFILE": "q"}, r"kafka-eos.toml has no profiles"),
        ({}, {"PROFILE": "q"}, r"no kafka-eos.toml exists here; KAFKA_EOS_CONFIG_FILE"),
        ({}, {"CONFIG_FILE": "x.toml"}, r"^x.toml cannot be read: No such file or directory$"),
        ({"pyproject.toml": ""}, {"CONFIG_FILE": "pyproject.toml"}, r"has no table \[tool.kafka-eos\]"),
        ({"kafka-eos.toml": "", "pyproject.toml": "[tool.kafka-eos]"}, {}, r"keep one of them"),
        ({"kafka-eos.toml": "[kafka_config]\na.from_file = 'gone'"}, {}, r"gone cannot be read"),
        ({"kafka-eos.toml": "[kafka_config]\na.from_file = 'empty'", "empty": "\n"}, {}, r"empty is empty"),
        ({"kafka-eos.toml": "[kafka_config]\na.from_file = 3"}, {}, r"does not name a file"),
        ({"kafka-eos.toml": "[kafka_config]\n'a' = 'hunter2'\n'a.from_file' = 'x'"}, {}, r"a is given twice"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    here: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], environment: dict[str, str], why: str
) -> None:
    for name, text in files.items():
        (here / name).write_text(text)
    for name, text in environment.items():
        monkeypatch.setenv(f"KAFKA_EOS_{name}", text)

    with pytest.raises(ConfigError, match=why) as raised:
        Settings.resolve()

    assert PASSWORD not in str(raised.value)


def test_secrets_of_files_are_read_wherever_a_clients_settings_stand(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "client.properties").write_text("sasl.password.from_file = password\n")
    in_code = Settings.resolve(code={"kafka_config": {"sasl.password.from_file": here / "password"}})
    monkeypatch.setenv("KAFKA_EOS_KAFKA_CONFIG", "@client.properties")

    stands = {"sasl.password.from_file": str(here / "password")}
    assert [in_code.kafka_config, Settings.resolve().kafka_config] == [stands] * 2
    assert read_secret_files(stands) == {"sasl.password": PASSWORD}


def test_a_secret_of_a_file_is_the_one_that_stands_there_now(here: Path) -> None:
    settings = Settings.resolve(code={"kafka_config": {"sasl.password.from_file": "password"}})
    assert PASSWORD not in json.dumps(settings.as_json())
    elsewhere = Settings.from_json(json.dumps(settings.as_json()))
    (here / "password").write_text("newer\n")

    assert read_secret_files(elsewhere.kafka_config or {}) == {"sasl.password": "newer"}
    assert str(elsewhere.kafka_config) == f"{{'sasl.password.from_file': '{here / 'password'}'}}"


def test_the_command_shows_each_value_with_its_origin_and_no_secret(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "kafka-eos.toml").write_text(FILE)
    (here / "jobs.py").write_text("from kafka_eos import Pipeline\npipeline = Pipeline('p', batch_size=11)\n")
    plain = CliRunner().invoke(app, ["config", "show"]).output
    monkeypatch.setenv("KAFKA_EOS_PROFILE", "production")
    shown = CliRunner().invoke(app, ["config", "show", "jobs.py"]).output
    found = json.loads(CliRunner().invoke(app, ["config", "show", "jobs.py", "--json"]).output)

    lines = [line.split() for line in shown.splitlines()]
    assert "kafka-eos.toml, no profile; KAFKA_EOS_PROFILE selects one of alone, production" in plain
    assert shown.startswith("file: kafka-eos.toml, profile production\n")
    assert ["batch_size", "11", "code"] in lines and ["max_restarts", "3", "file"] in lines
    assert (found["file"], found["profile"]) == ("kafka-eos.toml", "production")
    assert found["settings"]["max_restarts"] == {"value": 3, "origin": "file"}
    assert found["settings"]["kafka_config"]["value"]["sasl.username"] == "ada"
    assert PASSWORD not in plain + shown + json.dumps(found)


def test_the_command_checks_every_profile(here: Path) -> None:
    nothing = CliRunner().invoke(app, ["config", "check"])
    (here / "kafka-eos.toml").write_text(FILE)
    right = CliRunner().invoke(app, ["config", "check"])
    (here / "kafka-eos.toml").write_text(FILE.replace("batch_size = 9", "batch_size = 0"))
    wrong = CliRunner().invoke(app, ["config", "check"])

    assert (nothing.exit_code, right.exit_code, wrong.exit_code) == (0, 0, 1)
    assert nothing.output == "ok       no kafka-eos.toml, environment and defaults\n"
    assert right.output.splitlines() == [
        "ok       kafka-eos.toml, without a profile",
        "ok       kafka-eos.toml, profile alone",
        "ok       kafka-eos.toml, profile production",
    ]
    assert "INVALID  kafka-eos.toml, profile production: setting batch_size" in wrong.output


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("'sasl.pasword' = 'x'", "config['sasl.pasword'] cannot be applied to the client that ends transactions"),
        ("'sasl.pasword' = 'x'", "Did you mean 'sasl.password'?"),
        ("'security.protocol' = 'sasl'", "config['security.protocol'] is 'SASL'; use one of PLAINTEXT"),
        ("'enable.idempotence' = false", "kafka_config['enable.idempotence'] cannot be set"),
        ("'security.protocol' = 'ssl'\n'ssl.ca.location' = 'gone.pem'", "the TLS files cannot be used"),
    ],
)
def test_what_a_start_would_refuse_of_a_login_is_wrong(here: Path, given: str, said: str) -> None:
    (here / "kafka-eos.toml").write_text(f"[kafka_config]\n{given}\n")
    found = CliRunner().invoke(app, ["config", "check"])

    assert found.exit_code == 1
    assert said in " ".join(found.output.split())


def test_the_file_of_the_docs_is_taken(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/configuration.md").read_text(encoding="utf-8")
    text = page.partition("```toml\n")[2].partition("```")[0]
    (here / "password").rename(here / "kafka-password")
    (here / "kafka-eos.toml").write_text(text.replace("/run/secrets/kafka-password", "kafka-password"))
    monkeypatch.setenv("KAFKA_EOS_PROFILE", "production")
    settings = Settings.resolve()

    assert (settings.checkpoint_dir, settings.parallelism) == ("s3://checkpoints/jobs", 8)
    assert settings.kafka_config is not None and read_secret_files(settings.kafka_config)["sasl.password"] == PASSWORD
