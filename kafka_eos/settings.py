"""Settings of a job: one precedence, and where each value came from.

    argument in code  >  command-line option  >  environment (KAFKA_EOS_<NAME>)  >  default

Durations are seconds, or text with a unit: ``0.5``, ``"500ms"``, ``"10s"``, ``"2m"``.
Rule: a name that is not known is an error, wherever it was given; nothing is ignored silently.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, Field, PrivateAttr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from kafka_eos.errors import ConfigError
from kafka_eos.ids import token
from kafka_eos.interfaces import Json

Origin: TypeAlias = Literal["code", "cli", "environment", "default"]

_PREFIX = "KAFKA_EOS_"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def seconds(value: object) -> float:
    """Read a duration: a number of seconds, or text such as ``500ms``. ValueError if it is neither."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a duration; write seconds (0.5) or a unit (500ms, 10s, 2m, 1h)")
    return float(match[1]) * _UNITS[match[2] or "s"]


Duration = Annotated[float, BeforeValidator(seconds)]


class Settings(BaseSettings):
    """All settings of one job, frozen. Build them with ``resolve``; durations are in seconds."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, frozen=True, extra="forbid", env_ignore_empty=True)

    bootstrap_servers: str = Field("127.0.0.1:9092", min_length=1)
    """Kafka brokers for every connector that names none."""
    checkpoint_dir: Path = Path(".kafka-eos")
    """Durable: one directory a job below it."""
    state_dir: Path | None = None
    """Working directory of local state; may be lost. Default: ``local`` in the job's directory."""
    checkpoint_interval: Duration = 1.0
    checkpoint_min_pause: Duration = 0.0
    """Least time between the end of a checkpoint and the start of the next."""
    checkpoint_timeout: Duration = 120.0
    tolerated_checkpoint_failures: int = Field(3, ge=0)
    """Consecutive failures that are retried before the job stops."""
    max_restarts: int = Field(10, ge=0)
    """Consecutive deaths of a worker that are answered by a restart."""
    restart_backoff_initial: Duration = 1.0
    restart_backoff_max: Duration = 60.0
    state_backend: Literal["rocksdb", "memory"] = "rocksdb"
    state_cache_entries: int = Field(1_000_000, ge=1)
    batch_size: int = Field(5000, ge=1)
    """Most records that are read at once."""
    retained_checkpoints: int = Field(2, ge=1)
    stop_timeout: Duration = 30.0
    """Time that a stopping job gets for its last checkpoint."""
    parallelism: int = Field(1, ge=1)

    _origins: dict[str, Origin] = PrivateAttr(default_factory=dict)

    @classmethod
    def resolve(cls, code: Mapping[str, Any] | None = None, cli: Mapping[str, Any] | None = None) -> Settings:
        """Settings from everywhere. ConfigError names the setting and what is wrong with it."""
        code, cli = code or {}, cli or {}
        environment = _environment()
        for given, place in ((code, "in code"), (cli, "on the command line")):
            _refuse_unknown(given, place)
        origins: dict[str, Origin] = {
            **dict.fromkeys(environment, "environment"),
            **dict.fromkeys(cli, "cli"),
            **dict.fromkeys(code, "code"),
        }
        try:
            settings = cls(**{**cli, **code})
        except ValidationError as error:
            raise ConfigError(_explain(error, origins)) from None
        if settings.parallelism != 1:
            raise ConfigError(f"parallelism is {settings.parallelism}; this release runs jobs with parallelism 1 only")
        settings._origins = origins
        return settings

    def origin_of(self, name: str) -> Origin:
        """Where the value of a setting came from."""
        return self._origins.get(name, "default")

    def job_dir(self, job: str) -> Path:
        """The job's durable directory, absolute."""
        return (self.checkpoint_dir / token(job, "the pipeline name")).absolute()

    def local_dir(self, job: str) -> Path:
        """Where the job's workers keep their local state, absolute."""
        token(job, "the pipeline name")
        return self.job_dir(job) / "local" if self.state_dir is None else (self.state_dir / job).absolute()

    def for_connectors(self) -> Mapping[str, Json]:
        """What connectors may fall back on; see ``JobContext.settings``."""
        return {"bootstrap_servers": self.bootstrap_servers}

    def as_json(self) -> dict[str, object]:
        """Everything, for another process of the job; see ``from_json``."""
        return {"values": self.model_dump(mode="json"), "origins": dict(self._origins)}

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """The settings that ``as_json`` described. The environment of this process has no say."""
        stored = json.loads(text)
        settings = cls(**stored["values"])
        settings._origins = stored["origins"]
        return settings


def _environment() -> list[str]:
    """Settings that the environment gives. ConfigError for a name that is a setting's, misspelt."""
    found = [key.upper().removeprefix(_PREFIX).lower() for key, value in os.environ.items()
             if key.upper().startswith(_PREFIX) and value]  # fmt: skip
    for name in found:
        near = _nearest(name, cutoff=0.85)
        if name not in Settings.model_fields and near:
            raise ConfigError(f"environment variable {_PREFIX}{name.upper()} is not a setting; did you mean "
                              f"{_PREFIX}{near.upper()}?")  # fmt: skip
    return [name for name in found if name in Settings.model_fields]


def _refuse_unknown(names: Iterable[str], place: str) -> None:
    for name in names:
        if name not in Settings.model_fields:
            near = _nearest(name, cutoff=0.5)
            hint = f"did you mean {near!r}?" if near else f"known are {', '.join(sorted(Settings.model_fields))}"
            raise ConfigError(f"there is no setting {name!r} (given {place}); {hint}")


def _nearest(name: str, cutoff: float) -> str | None:
    return next(iter(difflib.get_close_matches(name, Settings.model_fields, n=1, cutoff=cutoff)), None)


def _explain(error: ValidationError, origins: Mapping[str, Origin]) -> str:
    lines = []
    for detail in error.errors(include_url=False):
        name = str(detail["loc"][0])
        origin = origins.get(name, "default")
        shown = f"{_PREFIX}{name.upper()}" if origin == "environment" else name
        lines.append(f"setting {shown} (from {origin}): {detail['msg']}, got {detail['input']!r}")
    return "; ".join(lines)
