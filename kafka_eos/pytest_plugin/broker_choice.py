"""The broker of a test session: one that runs, one in Docker, or the local one.

Rule: the same test runs on all of them. A broker that a session started ends with it, even if it is killed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.broker import Broker
from kafka_eos.devtools.broker.container import has_docker, kafka_container

BROKER_VARIABLE: Final = "KAFKA_EOS_TEST_BROKER"
_KINDS: Final = ("auto", "local", "testcontainers")
_KEEP_OLD_RECORDS: Final = {"log.retention.ms": "-1"}
"""Tests write records with timestamps of long ago, which a broker would delete."""


def choose_broker(option: str | None) -> str:
    """Return ``local``, ``testcontainers`` or the address of a broker. Raise ConfigError if it is none of these."""
    wanted = option or os.environ.get(BROKER_VARIABLE) or "auto"
    if wanted not in _KINDS and ":" not in wanted:
        raise ConfigError(
            f"--kafka-eos-broker (or {BROKER_VARIABLE}): {wanted!r} must be {', '.join(_KINDS)} or the address of a "
            "broker for tests, HOST:PORT"
        )
    if wanted != "auto":
        return wanted
    return "testcontainers" if has_docker() else "local"


@contextmanager
def open_broker(wanted: str, make_directory: Callable[[], Path]) -> Iterator[str]:
    """Yield the address of the broker; start it first if it is not an address."""
    match wanted:
        case "testcontainers":
            with kafka_container() as address:
                yield address
        case "local":
            with Broker(make_directory(), overrides=_KEEP_OLD_RECORDS) as broker:
                yield broker.bootstrap
        case _:
            yield wanted
