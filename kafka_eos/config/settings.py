"""Settings of a job: one precedence, and where each value came from.

argument in code > command-line option > environment (KAFKA_EOS_<NAME>) > file (kafka-eos.toml) > default

Durations are seconds, or text with a unit: ``0.5``, ``"500ms"``, ``"10s"``, ``"2m"``. Rule: an unknown name is an
error, wherever it was given; nothing is ignored silently.
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
from urllib.parse import unquote, urlsplit, urlunsplit

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from kafka_eos._util.cpu_quota import usable_cores
from kafka_eos._util.logging_setup import LogFormat, parse_levels
from kafka_eos._util.secrets import read_secret_files
from kafka_eos._util.store_urls import ensure_no_secret
from kafka_eos.config.kafka_client import KafkaConfig
from kafka_eos.config.toml_file import ConfigFile, read_config_file
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import ensure_name
from kafka_eos.core.json_values import Json

SettingOrigin: TypeAlias = Literal["code", "cli", "environment", "file", "default"]

_PREFIX = "KAFKA_EOS_"
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?", re.ASCII)
_URI = re.compile(r"[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_URI_AS_PATH = re.compile(r"([a-z][a-z0-9+.-]+):/", re.IGNORECASE)
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*(B|[KMG]I?B)?", re.ASCII)
_OTHER_VARIABLES = re.compile(
    r"FAILPOINTS|FAILPOINT_LOG|CALL_COUNTS|TEST_BROKER|TEST_POSTGRES|LIMITS|WORKER_HOST|CACHE_DIR|MAVEN_REPOSITORY"
    r"|CONFIG_FILE|PROFILE|REPLAY"
    r"|(SERVICE_(HOST|PORT)|PORT)(_.*)?"  # set by Kubernetes in every pod for a service named kafka-eos
)
_LIMIT = re.compile(r"\d+|(100|\d{1,2})(\.\d+)?\s*%|none", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(value: object) -> float:
    """Parse a duration: seconds, or text such as 500ms. Raises ValueError if it is neither."""
    if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0:
        return float(value)
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a duration; write seconds (0.5) or a unit (500ms, 10s, 2m, 1h)")
    return float(match[1]) * _UNITS[match[2] or "s"]


Duration = Annotated[float, BeforeValidator(parse_duration)]


def parse_byte_count(value: object) -> int:
    """Parse a size: bytes, or text such as 512MB. Raises ValueError if it is neither."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return value
    match = _SIZE.fullmatch(value.strip().upper()) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{value!r} is not a size; write bytes (1048576) or a unit (512KB, 256MB, 2GB)")
    return int(float(match[1]) * 1024 ** "BKMG".index((match[2] or "B")[0]))


ByteCount = Annotated[int, BeforeValidator(parse_byte_count)]


def parse_dead_letter_limit(value: object) -> str:
    """Parse a dead-letter limit: a number, a share, or none. Raises ValueError if it is none of these."""
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else value
    if not isinstance(text, str) or not _LIMIT.fullmatch(text.strip()):
        raise ValueError(f"{value!r} is not a valid limit; use a number (1000), a share of at most 100% (5%), or none")
    return text.strip()


def parse_http_address(value: object) -> str:
    """Parse host:port. Raises ValueError for anything else."""
    host, colon, port = str(value).rpartition(":")
    if not colon or not host.strip("[]") or not port.isdecimal() or int(port) > 65535:
        raise ValueError(
            f"{value!r} is not a valid address; use host:port, such as 127.0.0.1:9100 (port 0: a free one)"
        )
    return f"{host}:{int(port)}"


HttpAddress = Annotated[str, BeforeValidator(parse_http_address)]


def parse_names(value: object) -> object:
    """Parse several names, which text separates by commas."""
    return tuple(name.strip().lower() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


Names = Annotated[tuple[str, ...], BeforeValidator(parse_names)]


DeadLetterLimitText = Annotated[str, BeforeValidator(parse_dead_letter_limit)]


def parse_directories(value: object) -> object:
    """Parse one directory, or several, which text separates by the path separator."""
    if isinstance(value, Path):
        return (value,)
    return tuple(part for part in value.split(os.pathsep) if part) if isinstance(value, str) else value


Directories = Annotated[tuple[Path, ...] | None, BeforeValidator(parse_directories)]


def parse_storage_path(value: object) -> object:
    """Parse a local directory or the address of a store. Raises ValueError for an address with a secret in it."""
    if isinstance(value, Path) and (mangled := _URI_AS_PATH.match(str(value))):
        raise ValueError(f"write {mangled[1]}://… as text: a Path drops one of its slashes")
    if not isinstance(value, str) or not _URI.match(value):
        return value if not isinstance(value, str) else Path(value)
    parts = urlsplit(value)
    ensure_no_secret(value)
    if parts.scheme.lower() == "file":
        return Path(unquote(parts.path))
    return urlunsplit(parts._replace(path=parts.path.rstrip("/")))


StoragePath = Annotated[Path | str, BeforeValidator(parse_storage_path)]


LogLevels = Annotated[dict[str, str], BeforeValidator(parse_levels)]


LOCAL = Path(".kafka-eos")
"""Directory for what must be local (lock, status, state) if a job's checkpoints are elsewhere."""


_COMMAND_DIRECTORIES = ("audit", "broker", "demo")
"""Directories under .kafka-eos that belong to commands."""

_MOST_WORKERS = 128
"""The number of key groups: one more worker would own none."""


def _one_a_core() -> int:
    return min(usable_cores(), _MOST_WORKERS)


class Settings(BaseModel):
    """All settings of one job, frozen. Build them with ``resolve``; durations are in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)

    bootstrap_servers: str = Field("127.0.0.1:9092", min_length=1)
    """Kafka brokers for every connector that names none."""
    kafka_config: KafkaConfig = None
    """librdkafka's settings (TLS, SASL) for every Kafka connector of the job; a connector's ``config`` takes
    precedence."""
    checkpoint_dir: StoragePath = LOCAL
    """Durable: contains one directory per job. A path, or the address of a store, as in docs/storage.md."""
    checkpoint_key_file: Path | None = None
    """File with the keys that sign the records of checkpoints and savepoints, one per line: docs/security.md."""
    state_dir: Directories = None
    """Working directory of local state; may be lost. Default: ``local`` in the job's directory.

    Operators are distributed over several directories, on several disks.
    """
    checkpoint_interval: Duration = 1.0
    checkpoint_min_pause: Duration = 0.0
    """Minimum time between the end of a checkpoint and the start of the next."""
    checkpoint_timeout: Duration = 120.0
    tolerated_checkpoint_failures: int = Field(3, ge=0)
    """Consecutive failures that are retried before the job stops."""
    worker_timeout: Duration = 120.0
    """A worker that makes no progress for so long, in its restore or in one batch, is replaced.

    It is also the maximum time for the end of a session. After a quarter of it, the stacks of the worker's threads are
    logged.
    """
    max_restarts: int = Field(10, ge=0)
    """Consecutive worker failures that are followed by a restart."""
    max_environment_failures: int = Field(30, ge=0)
    """Consecutive failures of systems that user code depends on (EnvironmentFailed) that are followed by a restart."""
    max_dead_letters: DeadLetterLimitText = "50%"
    """Maximum of dead letters of one source: a number in one run, a share of its newest records, or ``none``."""
    dead_letter_window: int = Field(1000, ge=1)
    """The number of records to which a share of dead letters refers, or those of one epoch if these are more."""
    restart_backoff_initial: Duration = 1.0
    restart_backoff_max: Duration = 60.0
    restart_backoff_reset: Duration = 600.0
    """After an attempt that ran for so long and committed, the next failure counts as the first one again."""
    state_backend: Literal["rocksdb", "memory"] = "rocksdb"
    state_cache_entries: int = Field(1_000_000, ge=1)
    """Maximum of decoded objects of each state in memory; a tenth of it for the accumulators of folds with merge=."""
    state_memory: ByteCount = Field(256 << 20, ge=8 << 20)
    """Bytes per worker: RocksDB's block cache, filters and write buffers of all operators together."""
    state_profile: Literal["default", "read-heavy", "write-heavy", "spinning-disk"] = "default"
    """A set of RocksDB options that fit together; see docs/state.md.

    The next three settings replace one option each.
    """
    state_write_buffer: ByteCount | None = None
    """Bytes of rows of one state that are buffered before they become a file; at most half of ``state_memory``."""
    state_bloom_bits: int | None = Field(None, ge=0, le=64)
    """Bits per row of the bloom filter that avoids reads of absent rows; 0 disables the filter."""
    state_compaction: Literal["level", "universal"] | None = None
    state_ttl_cleanup_rows: int = Field(10_000, ge=1)
    """Rows of each state with a time to live that one checkpoint examines for expiry."""
    batch_size: int = Field(5000, ge=1)
    """Maximum of records per read."""
    retained_checkpoints: int = Field(2, ge=1)
    stop_timeout: Duration = 30.0
    """Time that a stopping job has for its last checkpoint."""
    start_from: Path | None = None
    """Savepoint that a job without checkpoints starts from.

    A job that started from it already continues where it is.
    """
    allow_dropped_state: bool = False
    """Start even if a checkpoint or savepoint holds state of operators that the pipeline does not have."""
    allow_repeated_output: bool = False
    """Start from a savepoint although its job has committed later epochs: their output will be there twice."""
    take_over: bool = False
    """A job without checkpoints may retire other incarnations of its name: those started in another directory."""
    parallelism: int = Field(default_factory=_one_a_core, ge=1, le=_MOST_WORKERS)
    """Worker processes, by default one per core; a checkpoint can be continued with another number.

    The Spark engine has its own default: one worker per core of the cluster.
    """
    checkpoint_mode: Literal["aligned", "unaligned", "at-least-once"] = "aligned"
    """The treatment of in-flight rows by barriers; see docs/barriers.md."""
    aligned_timeout: Duration = 0.0
    """Unaligned: how long barriers wait for each other before they overtake rows."""
    buffer_timeout: Duration = 0.005
    """The time for which rows for another worker wait for more rows; 0 sends each batch at once."""
    exchange_memory: ByteCount = Field(16 << 20, ge=1 << 20)
    """Bytes of rows that may be in flight to and from one worker."""
    kafka_memory: ByteCount = Field(512 << 20, ge=8 << 20)
    """Bytes per worker: records that Kafka's clients have read ahead or not yet sent."""
    alignment_spill: ByteCount = 0
    """Aligned: bytes of blocked input that one worker takes over, on its local disk beyond memory; 0: senders wait."""
    http: HttpAddress | None = None
    """``host:port`` of the job's HTTP server: docs/metrics.md. Port 0 is a free one."""
    http_ready_within: Duration = 60.0
    """A job is not ready if an epoch has been in progress, or overdue, for longer, or if a system that it needs has not
    answered for longer."""

    http_hosts: Names = ()
    """Names under which the HTTP server may be asked, besides those of loopback and addresses; ``*``: any."""
    http_certificate: Path | None = None
    """PEM file of the server's certificate with its chain, for HTTPS. It is read again when it changes."""
    http_key: Path | None = None
    """PEM file of its private key, if the key is not in the same file."""
    http_users: Path | None = None
    """File of the users that may read, one per line, as ``kafka-eos config user`` prints them: docs/dashboard.md."""
    http_user_header: str | None = Field(None, pattern=r"[A-Za-z0-9-]+")
    """Header in which a proxy names the user that it has admitted."""
    http_proxies: Names = ("127.0.0.1", "::1")
    """Addresses or networks of the proxies whose ``http_user_header`` is believed."""

    otel: bool = False
    """Send metrics, and a trace of each epoch, by OpenTelemetry's OTLP; ``OTEL_*`` variables set the destination."""

    openlineage: str | None = Field(None, min_length=1)
    """Send OpenLineage events about the job's inputs and outputs, as a job of this namespace of the data catalog;
    ``OPENLINEAGE_*`` variables set the destination."""

    standby: bool = False
    """Lead the job, or wait while another supervisor with this setting leads it: docs/high-availability.md."""
    standby_lease: Duration = Field(15.0, ge=0.5)
    """A leader that has sent no heartbeat for so long is considered lost."""

    log_format: LogFormat = "text"
    """Format of a running job's log lines: text, or one JSON object per line."""
    log_level: LogLevels = {}
    """Lowest level of log lines, by logger; the logger ``""`` stands for all that are not named."""
    show_error_messages: bool = False
    """Show the messages of exceptions of user code, codecs and clients in errors, logs, history and pages.

    They may quote records, and everybody who reads a log or a page then reads them: docs/security.md.
    """

    _origins: dict[str, SettingOrigin] = PrivateAttr(default_factory=dict)

    @field_validator("alignment_spill")
    @classmethod
    def _only_aligned(cls, value: int, info: ValidationInfo) -> int:
        if value and info.data.get("checkpoint_mode") != "aligned":
            raise ValueError("only aligned barriers block input: set checkpoint_mode=aligned, or 0 here")
        return value

    @field_validator("state_write_buffer")
    @classmethod
    def _fits(cls, value: int | None, info: ValidationInfo) -> int | None:
        memory = info.data.get("state_memory")
        if value is not None and memory is not None and value > memory // 2:
            raise ValueError(f"more than half of state_memory ({memory} bytes), which all write buffers share")
        return value

    @classmethod
    def resolve(
        cls,
        code: Mapping[str, Any] | None = None,
        cli: Mapping[str, Any] | None = None,
        file: ConfigFile | None = None,
    ) -> Settings:
        """Return the resolved settings. ``file``: None for the one named by the environment or in the working
        directory.

        Raises ConfigError, which names the setting and the problem.
        """
        code, cli, environment = code or {}, cli or {}, _environment()
        file = read_config_file() if file is None else file
        for given, place in ((code, "in code"), (cli, "on the command line"), (file.common, f"in {file.path}")):
            _refuse_unknown(given, place)
        for profile, values in file.profiles.items():
            _refuse_unknown(values, f"in {file.path}, profile {profile}")
        origins: dict[str, SettingOrigin] = {
            **dict.fromkeys(file.values, "file"),
            **dict.fromkeys(environment, "environment"),
            **dict.fromkeys(cli, "cli"),
            **dict.fromkeys(code, "code"),
        }
        try:
            settings = cls(**{**file.values, **environment, **cli, **code})
        except ValidationError as error:
            raise ConfigError(_explain(error, origins, file)) from None
        settings._origins = origins
        settings._expect_secrets(file)
        settings._expect_keys_elsewhere()
        return settings

    def _expect_secrets(self, file: ConfigFile) -> None:
        """Check that secret files exist before anything starts; each client reads them again."""
        try:
            read_secret_files(self.kafka_config or {})
        except ValueError as error:
            origin = self.origin_of("kafka_config")
            place = file.location_of("kafka_config") if origin == "file" else origin
            raise ConfigError(f"setting kafka_config (from {place}): {error}") from None

    def _expect_keys_elsewhere(self) -> None:
        """Raise ConfigError if the keys are in the checkpoints: who may write there could replace them too."""
        keys, home = self.checkpoint_key_file, self.checkpoint_dir
        if keys is not None and isinstance(home, Path) and keys.resolve().is_relative_to(home.resolve()):
            raise ConfigError(
                f"setting checkpoint_key_file: {keys} is in the checkpoint directory {home}, whose records its keys "
                "protect: move it to a directory that others cannot write to"
            )

    def origin_of(self, name: str) -> SettingOrigin:
        """Return the origin of a setting's value."""
        return self._origins.get(name, "default")

    def checkpoint_location(self, job: str) -> Path | str:
        """Return where the job's checkpoints are: a path or an address."""
        if job in _COMMAND_DIRECTORIES and self.checkpoint_dir in (LOCAL, LOCAL.absolute()):
            raise ConfigError(
                f"{LOCAL}/{job} is reserved for the command kafka-eos {job}: rename the pipeline, or "
                "set another checkpoint_dir"
            )
        if isinstance(self.checkpoint_dir, Path):
            return self.job_dir(job)
        parts = urlsplit(self.checkpoint_dir)
        return urlunsplit(parts._replace(path=f"{parts.path}/{ensure_name(job, 'the pipeline name')}"))

    def job_dir(self, job: str) -> Path:
        """Return the job's directory on this machine, absolute.

        Its durable objects are there too unless they are remote.
        """
        home = self.checkpoint_dir if isinstance(self.checkpoint_dir, Path) else LOCAL
        return (home / ensure_name(job, "the pipeline name")).absolute()

    def local_dirs(self, job: str) -> tuple[Path, ...]:
        """Return all directories in which the job's workers keep their local state, absolute."""
        ensure_name(job, "the pipeline name")
        return tuple((place / job).absolute() for place in self.state_dir or ()) or (self.job_dir(job) / "local",)

    @property
    def http_at(self) -> tuple[str, int] | None:
        """Return ``http`` as a host and a port."""
        if self.http is None:
            return None
        host, _, port = self.http.rpartition(":")
        return host.strip("[]"), int(port)

    def state_options(self) -> Mapping[str, Any]:
        """Return the arguments of ``runtime.state.rocksdb_options.StateOptions.of``."""
        return {
            "memory": self.state_memory,
            "profile": self.state_profile,
            "write_buffer": self.state_write_buffer,
            "bloom_bits": self.state_bloom_bits,
            "compaction": self.state_compaction,
            "ttl_cleanup_rows": self.state_ttl_cleanup_rows,
        }

    def connector_defaults(self, **more: Json) -> Mapping[str, Json]:
        """Return the settings that connectors may fall back on."""
        return {
            **more,
            "bootstrap_servers": self.bootstrap_servers,
            "bootstrap_servers_origin": self.origin_of("bootstrap_servers"),
            "kafka_config": dict(self.kafka_config or {}),
            "checkpoint_interval": self.checkpoint_interval,
            "parallelism": self.parallelism,
        }

    def as_json(self) -> dict[str, object]:
        """Return all settings for another process of the job, whose working directory may differ; see ``from_json``."""
        values = self.model_dump(mode="json")
        if isinstance(self.checkpoint_dir, Path):
            values["checkpoint_dir"] = str(self.checkpoint_dir.absolute())
        return {"values": values, "origins": dict(self._origins)}

    @classmethod
    def from_json(cls, text: str) -> Settings:
        """Return the settings that ``as_json`` described. The environment of this process is ignored."""
        stored = json.loads(text)
        settings = cls(**stored["values"])
        settings._origins = stored["origins"]
        return settings


def _environment() -> Mapping[str, str]:
    """Return the settings that the environment sets.

    Raises ConfigError for a name with our prefix that is not a setting.
    """
    found = {key.upper().removeprefix(_PREFIX).lower(): value for key, value in os.environ.items()
             if key.upper().startswith(_PREFIX) and value}  # fmt: skip
    for name in found:
        if name not in Settings.model_fields and not _OTHER_VARIABLES.fullmatch(name.upper()):
            near = _nearest(name, cutoff=0.5)
            hint = f"did you mean {_PREFIX}{near.upper()}?" if near else "docs/configuration.md lists all of them"
            raise ConfigError(f"environment variable {_PREFIX}{name.upper()} is not a setting; {hint}")
    return {name: value for name, value in found.items() if name in Settings.model_fields}


def _refuse_unknown(names: Iterable[str], place: str) -> None:
    for name in names:
        if name not in Settings.model_fields:
            near = _nearest(name, cutoff=0.5)
            hint = f"did you mean {near!r}?" if near else f"known are {', '.join(sorted(Settings.model_fields))}"
            raise ConfigError(f"there is no setting {name!r} (given {place}); {hint}")


def _nearest(name: str, cutoff: float) -> str | None:
    return next(iter(difflib.get_close_matches(name, Settings.model_fields, n=1, cutoff=cutoff)), None)


def _explain(error: ValidationError, origins: Mapping[str, SettingOrigin], file: ConfigFile) -> str:
    lines = []
    for detail in error.errors(include_url=False):
        name = str(detail["loc"][0])
        origin = origins.get(name, "default")
        shown = f"{_PREFIX}{name.upper()}" if origin == "environment" else name
        problem, given = detail["msg"].removeprefix("Value error, "), detail["input"]
        # An address may be rejected because of a secret in it, and client settings often hold secrets.
        shows = name != "kafka_config" and not _URI.match(str(given)) and repr(given) not in problem
        place = file.location_of(name) if origin == "file" else origin
        lines.append(f"setting {shown} (from {place}): {problem}{f', got {given!r}' if shows else ''}")
    return "; ".join(lines)
