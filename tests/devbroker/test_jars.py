"""The jar cache: whole and verified, or an error that says what to do."""

from __future__ import annotations

import base64
import hashlib
import http.server
import os
import shutil
import stat
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kafka_eos._util.jvm import maven
from kafka_eos._util.jvm.jars import CONFIGURATIONS, cache_dir, pinned_jars
from kafka_eos._util.jvm.java import find_java
from kafka_eos._util.jvm.maven import VARIABLE, repository
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.broker import fetch_jars
from tests.marks import campaign


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """A directory in Maven's layout with this machine's own jars: nothing is downloaded."""
    home = tmp_path / "mirror"
    for jar, artifact in zip(fetch_jars("spark"), pinned_jars("spark"), strict=True):
        (home / artifact.path).parent.mkdir(parents=True)
        shutil.copyfile(jar, home / artifact.path)
    return home


@pytest.fixture
def cache(mirror: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, filled from ``mirror``."""
    monkeypatch.setenv(VARIABLE, str(mirror))
    monkeypatch.setenv("KAFKA_EOS_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "jars" / "spark"


class Server(http.server.ThreadingHTTPServer):
    """Gives the files of a directory; cuts the first answer for each after ``cut`` bytes, if that is set."""

    def __init__(self, home: Path, cut: int | None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.home, self.cut = home, cut
        self.elsewhere: str | None = None
        """The address of the server that requests are redirected to."""
        self.asked: list[tuple[str, str | None, str | None]] = []
        """Path, range and login of each request."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        first = self.path not in [path for path, *_ in self.server.asked]
        wanted = self.headers["Range"]
        self.server.asked.append((self.path, wanted, self.headers["Authorization"]))
        if self.server.elsewhere is not None:
            self.send_response(302)
            self.send_header("Location", f"{self.server.elsewhere}{self.path}")
            self.end_headers()
            return
        data = (self.server.home / self.path[1:]).read_bytes()
        start = 0 if wanted is None else int(wanted.removeprefix("bytes=").removesuffix("-"))
        self.send_response(200 if wanted is None else 206)
        self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        self.wfile.write(data[start:] if self.server.cut is None or not first else data[: self.server.cut])

    def log_message(self, *_: object) -> None:
        """Not on the screen."""


@pytest.fixture
def server(mirror: Path, request: pytest.FixtureRequest) -> Iterator[Server]:
    with Server(mirror, getattr(request, "param", None)) as found:
        threading.Thread(target=found.serve_forever, daemon=True).start()
        yield found
        found.shutdown()


def fake_java(directory: Path, version: str) -> Path:
    """A JAVA_HOME whose java says it is ``version``."""
    java = directory / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2014-03-18' >&2\n")
    java.chmod(java.stat().st_mode | stat.S_IXUSR)
    return directory


@pytest.mark.parametrize("conf", [c if c in ("broker", "spark") else campaign(c) for c in CONFIGURATIONS])
def test_every_jar_of_a_set_is_pinned(conf: str) -> None:
    jars = fetch_jars(conf)

    assert [jar.name for jar in jars] == [artifact.file for artifact in pinned_jars(conf)]
    assert {jar.name for jar in jars} == {path.name for path in (cache_dir() / "jars" / conf).iterdir()}


def test_the_spark_set_brings_nothing_that_pyspark_ships() -> None:
    import pyspark

    shipped = {path.name.rpartition("-")[0] for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}

    assert {jar.name.rpartition("-")[0] for jar in fetch_jars("spark")} & shipped == set()


def test_an_empty_cache_is_filled_and_leaves_nothing_else_behind(cache: Path) -> None:
    fetch_jars("spark")

    assert {path.name for path in cache.parent.iterdir()} == {"spark", "lock"}
    assert {path.name for path in cache.iterdir()} == {artifact.file for artifact in pinned_jars("spark")}


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
    assert {path.name for path in cache.iterdir()} == {artifact.file for artifact in pinned_jars("spark")}


def test_what_an_interrupted_fetch_left_is_not_used(cache: Path) -> None:
    partial = cache.with_name("spark.partial")
    partial.mkdir(parents=True)
    (partial / "kafka-clients-3.9.2.jar").write_bytes(b"half")
    jars = fetch_jars("spark")

    assert all(jar.parent == cache and jar.stat().st_size > 1000 for jar in jars)
    assert not partial.exists()


def test_a_repository_with_other_files_than_the_pinned_ones_is_refused(cache: Path, mirror: Path) -> None:
    wrong = pinned_jars("spark")[0]
    with (mirror / wrong.path).open("ab") as file:
        file.write(b"!")

    with pytest.raises(ConfigError, match=f"{wrong.file} of .* is not the pinned file"):
        fetch_jars("spark")
    assert not cache.exists()


@pytest.mark.parametrize("home", ["http://127.0.0.1:1", "/nowhere"])
def test_a_download_that_fails_says_what_to_do_and_leaves_no_set(
    cache: Path, home: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, home)

    with pytest.raises(ConfigError, match=rf"(?s)could not be fetched: {home}/.*{VARIABLE}"):
        fetch_jars("spark")
    assert not cache.exists()


@pytest.mark.parametrize("server", [1000], indirect=True)
def test_a_download_that_breaks_goes_on_where_it_was(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, server.url)
    fetch_jars("spark")

    parts = {f"/{jar.path}": [part for path, part, _ in server.asked if path == f"/{jar.path}"]
             for jar in pinned_jars("spark")}  # fmt: skip
    assert list(parts.values()) == [[None, "bytes=1000-"]] * len(parts)


def test_a_login_in_the_address_is_sent_and_not_shown(
    cache: Path, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, server.url.replace("//", "//ada:hunter%212@"))
    fetch_jars("spark")

    assert {login for *_, login in server.asked} == {f"Basic {base64.b64encode(b'ada:hunter!2').decode()}"}
    assert "hunter" not in capsys.readouterr().err


def test_a_login_is_not_sent_to_the_server_that_a_repository_redirects_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maven, "_ATTEMPTS", 1)
    (tmp_path / "jar").mkdir()
    artifact = maven.Artifact("jar", "a", "1", hashlib.sha256(b"content").hexdigest())
    (tmp_path / artifact.path).parent.mkdir(parents=True)
    (tmp_path / artifact.path).write_bytes(b"content")
    with Server(tmp_path, None) as first, Server(tmp_path, None) as second:
        for server in (first, second):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        first.elsewhere = second.url

        maven.fetch(first.url.replace("//", "//ada:hunter@"), artifact, tmp_path)
        for server in (first, second):
            server.shutdown()

    assert [login is not None for *_, login in first.asked] == [True]
    assert [login for *_, login in second.asked] == [None]


@pytest.mark.parametrize(
    ("mirror_of", "used"), [("*", True), ("external:*", True), ("a,central", True), ("other", False)]
)
def test_a_mirror_in_the_settings_of_maven_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mirror_of: str, used: bool
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    usual = repository()
    (tmp_path / ".m2").mkdir()
    (tmp_path / ".m2" / "settings.xml").write_text(
        '<settings xmlns="http://maven.apache.org/SETTINGS/1.2.0"><mirrors><mirror><id>m</id>'
        f"<mirrorOf>{mirror_of}</mirrorOf><url>http://127.0.0.1:1/maven/</url></mirror></mirrors></settings>"
    )

    assert repository() == ("http://127.0.0.1:1/maven" if used else usual)


def test_the_default_is_that_of_an_installed_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    assert repository().endswith("/maven2")  # of the Ivy inside pyspark

    lib = tmp_path / "lib"
    lib.mkdir()
    with zipfile.ZipFile(lib / "maven-model-builder-3.9.9.jar", "w") as jar:
        jar.writestr("org/apache/maven/model/pom-4.0.0.xml", "<url>https://central.example/maven2</url>")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mvn").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "mvn").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    assert repository() == "https://central.example/maven2"


def test_without_a_client_the_error_says_how_to_name_a_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "pyspark", None)  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=VARIABLE):
        repository()


def test_a_broker_needs_nothing_of_the_other_extras() -> None:
    """Neither to fetch its jars nor to start."""
    code = "import sys, kafka_eos.cli.broker, kafka_eos.devtools.broker.broker; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert {"pyspark", "pandas", "pyarrow", "jinja2"} & set(modules) == set()


def test_an_unknown_configuration_is_refused() -> None:
    with pytest.raises(ConfigError, match="available: broker, broker-4.4, broker-4.0, broker-3.9, spark"):
        fetch_jars("flink")


@pytest.mark.parametrize(("version", "major"), [("1.8.0_392", 8), ("11.0.21", 11)])
def test_an_old_java_is_refused_by_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, major: int
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / f"jdk-{version}", version)))

    with pytest.raises(ConfigError, match=f"is Java {major}; Kafka and Spark need Java 17 or newer"):
        find_java()


@pytest.mark.parametrize("version", ["17", "17.0.15", "25-ea"])
def test_a_java_that_is_new_enough_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    home = fake_java(tmp_path / f"jdk-{version}", version)
    monkeypatch.setenv("JAVA_HOME", str(home))

    assert find_java() == str(home / "bin" / "java")


def test_no_java_at_all_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match="no java found in the PATH.*openjdk-17"):
        find_java()


def test_a_user_without_a_home_is_told_where_files_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """As that of a container that may have any number."""
    monkeypatch.delenv("HOME")
    monkeypatch.delenv("KAFKA_EOS_CACHE_DIR", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 54_321)

    with pytest.raises(ConfigError, match="set KAFKA_EOS_CACHE_DIR"):
        cache_dir()
