"""The jar cache: whole and verified, or an error that says what to do."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from kafka_eos.devbroker import fetch_jars
from kafka_eos.devbroker.jars import CONFIGURATIONS, cache_dir, pinned_jars
from kafka_eos.devbroker.java import find_java
from kafka_eos.errors import ConfigError

UNREACHABLE = """<ivysettings><settings defaultResolver="none"/>
<resolvers><ibiblio name="none" m2compatible="true" root="http://127.0.0.1:1/"/></resolvers></ivysettings>"""


def local_mirror(jars: list[Path]) -> str:
    """Ivy settings whose only repository is a directory with ``jars``, found by name and version."""
    return f"""<ivysettings><settings defaultResolver="files"/><resolvers><filesystem name="files">
    <artifact pattern="{jars[0].parent}/[artifact]-[revision].[ext]"/></filesystem></resolvers></ivysettings>"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, filled from this machine's own: nothing is downloaded."""
    jars = fetch_jars("spark")
    settings = tmp_path / "ivysettings.xml"
    settings.write_text(local_mirror(jars))
    monkeypatch.setenv("KAFKA_EOS_IVY_SETTINGS", str(settings))
    monkeypatch.setenv("KAFKA_EOS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jars" / "spark"


def fake_java(directory: Path, version: str) -> Path:
    """A JAVA_HOME whose java says it is ``version``."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2014-03-18' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return directory


@pytest.mark.parametrize("conf", CONFIGURATIONS)
def test_every_jar_of_a_set_is_pinned(conf: str) -> None:
    jars = fetch_jars(conf)

    assert {jar.name for jar in jars} == set(pinned_jars(conf))
    assert {jar.name for jar in jars} == {path.name for path in (cache_dir() / "jars" / conf).iterdir()}


def test_the_spark_set_brings_nothing_that_pyspark_ships() -> None:
    import pyspark

    shipped = {path.name.rpartition("-")[0] for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}

    assert {jar.name.rpartition("-")[0] for jar in fetch_jars("spark")} & shipped == set()


def test_an_empty_cache_is_filled_and_leaves_nothing_else_behind(cache: Path) -> None:
    fetch_jars("spark")

    assert {path.name for path in cache.parent.iterdir()} == {"spark", "lock"}
    assert {path.name for path in cache.iterdir()} == set(pinned_jars("spark"))


@pytest.mark.parametrize("damage", ["corrupt", "remove"])
def test_a_damaged_jar_is_noticed_and_fetched_again(
    cache: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    jar = fetch_jars("spark")[0]
    if damage == "corrupt":
        jar.write_bytes(jar.read_bytes()[:-1] + b"!")
    else:
        jar.unlink()
    again = fetch_jars("spark")

    assert jar.name in capsys.readouterr().err
    assert jar in again
    assert {path.name for path in cache.iterdir()} == set(pinned_jars("spark"))


def test_what_an_interrupted_fetch_left_is_not_used(cache: Path) -> None:
    partial = cache.with_name("spark.partial")
    partial.mkdir(parents=True)
    (partial / "kafka-clients-3.9.2.jar").write_bytes(b"half")
    jars = fetch_jars("spark")

    assert all(jar.parent == cache and jar.stat().st_size > 1000 for jar in jars)
    assert not partial.exists()


def test_a_repository_with_other_files_than_the_pinned_ones_is_refused(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKA_EOS_CACHE_DIR")
    evil = tmp_path / "evil"
    evil.mkdir()
    copies = [Path(shutil.copy(jar, evil)) for jar in fetch_jars("spark")]
    with copies[0].open("ab") as file:
        file.write(b"!")
    (tmp_path / "ivysettings.xml").write_text(local_mirror(copies))
    monkeypatch.setenv("KAFKA_EOS_CACHE_DIR", str(tmp_path / "cache"))

    with pytest.raises(ConfigError, match=f"{copies[0].name} is not the pinned file"):
        fetch_jars("spark")
    assert not cache.exists()


def test_a_download_that_fails_says_what_to_do_and_leaves_no_set(cache: Path) -> None:
    Path(os.environ["KAFKA_EOS_IVY_SETTINGS"]).write_text(UNREACHABLE)

    with pytest.raises(ConfigError, match=r"(?s)could not be fetched.*KAFKA_EOS_IVY_SETTINGS"):
        fetch_jars("spark")
    assert not cache.exists()


def test_an_unknown_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="there are: broker, spark"):
        fetch_jars("flink")


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", 8), ("11.0.21", 11)])
def test_an_old_java_is_refused_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", version)))

    with pytest.raises(ConfigError, match=f"is Java {major}; Kafka and Spark need Java 17 or newer"):
        find_java()


@pytest.mark.parametrize("version", ["17", "17.0.15", "25-ea"])
def test_a_java_that_is_new_enough_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    home = fake_java(tmp_path / "jdk", version)
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert find_java() == str(home / "bin" / "java")


def test_no_java_at_all_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match="no java found in the PATH.*openjdk-17"):
        find_java()
