"""Fetches the jars of a Kafka broker, and those Spark needs to read Kafka, once a machine.

Rule: a set is used only if every file has its pinned SHA-256. A set appears whole or not at all: it is
fetched into a staging directory, verified there, and renamed into place under a lock.

Settings, by environment:
    KAFKA_EOS_CACHE_DIR      where jars are kept (default ``~/.cache/kafka-eos``)
    KAFKA_EOS_IVY_SETTINGS   an Ivy settings file of yours, for a mirror or a proxy
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from kafka_eos.devbroker.java import find_java
from kafka_eos.errors import ConfigError

_PACKAGE = Path(__file__).parent
CONFIGURATIONS = ("broker", "spark")


def fetch_jars(conf: str) -> list[Path]:
    """The verified jars of configuration ``conf`` ("broker" or "spark"), sorted by name; fetched if absent.

    Raises ConfigError if they cannot be fetched (no Java 17, no pyspark, no network) or are not what is pinned.
    """
    pinned = pinned_jars(conf)
    home = cache_dir() / "jars"
    target = home / conf
    if _fault(target, pinned) is not None:
        with _locked(home / "lock"):  # one for all sets: they share the Ivy cache
            fault = _fault(target, pinned)  # another process may have fetched it while we waited
            if fault is not None:
                _install(conf, target, pinned, fault)
    return [target / name for name in sorted(pinned)]


def cache_dir() -> Path:
    """Where downloaded files are kept."""
    return Path(os.environ.get("KAFKA_EOS_CACHE_DIR") or Path.home() / ".cache" / "kafka-eos").absolute()


def pinned_jars(conf: str) -> dict[str, str]:
    """File name -> SHA-256 (hex) of each jar of ``conf``. Raises ConfigError for an unknown configuration."""
    if conf not in CONFIGURATIONS:
        raise ConfigError(f"no jar configuration {conf!r}; there are: {', '.join(CONFIGURATIONS)}")
    lines = (_PACKAGE / "jars.sha256").read_text().splitlines()
    pairs = (line.split() for line in lines)
    return {path.removeprefix(f"{conf}/"): digest for digest, path in pairs if path.startswith(f"{conf}/")}


def _fault(directory: Path, pinned: dict[str, str]) -> str | None:
    """What is wrong with the set in ``directory``, None if nothing is."""
    if not directory.is_dir():
        return "not fetched yet"
    for name, digest in pinned.items():
        path = directory / name
        if not path.is_file():
            return f"{name} is missing"
        with path.open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                return f"{name} is not the pinned file (SHA-256 differs)"
    return None


def _install(conf: str, target: Path, pinned: dict[str, str], reason: str) -> None:
    staging = target.with_name(f"{conf}.partial")
    shutil.rmtree(staging, ignore_errors=True)  # of a fetch that was interrupted; we hold the lock
    _say(f"fetching {len(pinned)} jars ({conf}) to {target}: {reason}\n")
    _retrieve(conf, staging, len(pinned))
    fault = _fault(staging, pinned)
    if fault is not None:
        raise ConfigError(
            f"the download of the {conf} jars is not what this version of kafka-eos was built with: {fault}. "
            f"Look at {staging}; if a mirror or proxy answers for Maven Central, point KAFKA_EOS_IVY_SETTINGS "
            "at settings that reach the real files."
        )
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)
    shutil.rmtree(_ivy_cache(), ignore_errors=True)


def _retrieve(conf: str, staging: Path, count: int) -> None:
    """Resolves and downloads by Ivy. Its cache keeps what an interrupted run has fetched."""
    settings = os.environ.get("KAFKA_EOS_IVY_SETTINGS") or str(_PACKAGE / "ivysettings.xml")
    command = [find_java(), "-cp", str(_ivy_jar()), "org.apache.ivy.Main"]
    command += ["-settings", settings, "-ivy", str(_PACKAGE / "ivy.xml"), "-cache", str(_ivy_cache())]
    command += ["-confs", conf, "-types", "jar", "bundle"]
    command += ["-retrieve", f"{staging}/[artifact]-[revision].[ext]"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as ivy:
        assert ivy.stdout is not None  # PIPE
        output = _show_progress(ivy.stdout, count)
    if ivy.returncode != 0:
        raise ConfigError(
            f"the {conf} jars could not be fetched (Ivy ended with {ivy.returncode}). They come from Maven Central; "
            "check the network, or set KAFKA_EOS_IVY_SETTINGS to an Ivy settings file for your mirror, then try again. "
            "What was fetched so far is kept. Ivy's last words:\n" + "\n".join(output[-15:])
        )


def _show_progress(lines: Iterator[str], count: int) -> list[str]:
    output, done = [], 0
    for line in lines:
        output.append(line.rstrip())
        if "[SUCCESSFUL ]" in line:
            done += 1
            _say(f"\r  {done}/{count} ", always=False)
    _say("\n", always=False)
    return output


def _say(text: str, always: bool = True) -> None:
    if always or sys.stderr.isatty():
        sys.stderr.write(text)
        sys.stderr.flush()


def _ivy_cache() -> Path:
    return cache_dir() / "ivy"


def _ivy_jar() -> Path:
    """Ivy ships with pyspark, so nothing else has to be installed to fetch jars."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ConfigError("jars are fetched by the Ivy that pyspark ships: pip install 'kafka-eos[spark]'")
    found = sorted(Path(spec.origin).with_name("jars").glob("ivy-*.jar"))
    if not found:
        raise ConfigError(f"no Ivy jar in {Path(spec.origin).parent}/jars: reinstall pyspark")
    return found[-1]


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
