"""Downloads jars once per machine: Kafka brokers, a schema registry, Java serializers, and Spark's Kafka connector.

Rule: a set is used only if every file has its pinned SHA-256. A set appears as a whole or not at all: it is downloaded
into a staging directory, verified there, and renamed into place under a lock.

Settings, by environment:
    KAFKA_EOS_CACHE_DIR          directory of the jars (default ``~/.cache/kafka-eos``)
    KAFKA_EOS_MAVEN_REPOSITORY   repository to download from instead of Maven's; see ``maven``
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from kafka_eos._util.jvm.maven import (
    VARIABLE,
    Artifact,
    RepositoryUnreachable,
    fetch,
    is_intact,
    redact_login,
    repository,
)
from kafka_eos.core.errors import ConfigError

_PACKAGE = Path(__file__).parent
_AT_ONCE = 4
RELEASES = {"4.3": "broker", "4.4": "broker-4.4", "4.0": "broker-4.0", "3.9": "broker-3.9"}
"""Configuration of each Kafka release with a downloadable broker; the first one is the default."""
CONFIGURATIONS = (*RELEASES.values(), "spark", "registry", "serdes")


def fetch_jars(conf: str) -> list[Path]:
    """Return the verified files of a configuration, sorted by name; download them if absent.

    ``conf``: a value of ``RELEASES``, "spark", "registry" or "serdes".
    Raises ConfigError if they cannot be downloaded or do not match their pinned checksums.
    """
    pinned = pinned_jars(conf)
    home = cache_dir() / "jars"
    target = home / conf
    if _fault(target, pinned) is not None:
        with _locked(home / "lock"):
            fault = _fault(target, pinned)  # another process may have downloaded it meanwhile
            if fault is not None:
                _install(conf, target, pinned, fault)
    return [target / artifact.file for artifact in pinned]


def cache_dir() -> Path:
    """Return the directory of downloaded files.

    Raises ConfigError if there is none: a container's user may have no home.
    """
    if given := os.environ.get("KAFKA_EOS_CACHE_DIR"):
        return Path(given).absolute()
    try:
        return (Path.home() / ".cache" / "kafka-eos").absolute()
    except RuntimeError:
        raise ConfigError(
            "this user has no home directory: set KAFKA_EOS_CACHE_DIR to a directory for downloaded files"
        ) from None


def pinned_jars(conf: str) -> list[Artifact]:
    """Return the jars of ``conf`` by file name. Raises ConfigError for an unknown configuration."""
    if conf not in CONFIGURATIONS:
        raise ConfigError(f"no jar configuration {conf!r}; available: {', '.join(CONFIGURATIONS)}")
    lines = map(str.split, (_PACKAGE / "jars.sha256").read_text(encoding="utf-8").splitlines())
    found = [Artifact.parse(coordinates, digest) for digest, of, coordinates in lines if of == conf]
    return sorted(found, key=lambda artifact: artifact.file)


def _fault(directory: Path, artifacts: Sequence[Artifact]) -> str | None:
    """Return the problem with the set in ``directory``, or None."""
    if not directory.is_dir():
        return "not fetched yet"
    for artifact in artifacts:
        if not is_intact(directory / artifact.file, artifact):
            return f"{artifact.file} is missing, or is not the pinned file (SHA-256 differs)"
    return None


def _install(conf: str, target: Path, artifacts: Sequence[Artifact], reason: str) -> None:
    staging = target.with_name(f"{conf}.partial")  # may be left by an interrupted download; we hold the lock
    staging.mkdir(parents=True, exist_ok=True)
    home = repository()
    _say(f"fetching {len(artifacts)} jars ({conf}) from {redact_login(home)} to {target}: {reason}\n")
    try:
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            for done, _ in enumerate(pool.map(partial(fetch, home, directory=staging), artifacts), 1):
                _say(f"\r  {done}/{len(artifacts)} ", always=False)
    except RepositoryUnreachable as error:
        raise ConfigError(
            f"the {conf} jars could not be fetched: {error}. Check the network (proxies: HTTPS_PROXY), or name another "
            f"repository: {VARIABLE}=URL or a directory. Then try again; what was fetched so far is kept"
        ) from None
    finally:
        _say("\n", always=False)
    wanted = {artifact.file for artifact in artifacts}
    for stray in [path for path in staging.iterdir() if path.name not in wanted]:
        stray.unlink()  # belongs to another version of this package
    shutil.rmtree(target, ignore_errors=True)
    staging.rename(target)


def _say(text: str, always: bool = True) -> None:
    if always or sys.stderr.isatty():
        sys.stderr.write(text)
        sys.stderr.flush()


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
