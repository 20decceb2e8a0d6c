"""A user's question about topics, as given on the command line.

Pure. Rule: an option that cannot be valid is a ConfigError here, before Spark starts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kafka_eos._util.secrets import strip_credentials
from kafka_eos.audit.cluster.cluster_admin import Offsets
from kafka_eos.audit.cluster.java_client_config import ClusterAccess
from kafka_eos.audit.topics.expectation import Expectation
from kafka_eos.codecs import Registry
from kafka_eos.core.errors import ConfigError

PROVENANCE = "provenance"
_SAME = ("inputs", "outputs", "id", "input_id", "where", "output_where", "key", "order", "schema", "sql",
         "output_sql", "expect", "unordered", "input_bootstrap", "registry", "jobs")  # fmt: skip
"""The options that must be the same in an audit that resumes another one."""


@dataclass(frozen=True)
class TopicAuditOptions:
    """The parameters of an audit of any topics: inputs, outputs, ids, order, range, query.

    Expressions are Spark SQL over the columns of ``tables.records``, or one of the short forms

    ``$.a.b``       a field of a JSON value
    ``header:NAME`` the last header of that name
    ``provenance``  (for ``id``) what a sink of this project wrote into the ``kafka_eos`` header

    ``outputs``  topics; whatever holds a slash is a directory of files with a value a line
    ``id``       what names a record: equal in an input and the output made from it; None asks for no ids
    ``input_id`` the same of inputs, where it is another expression
    ``where``    inputs of which an output is expected; default: all
    ``output_where``  outputs that are compared; default: all
    ``key``      within what order must hold; default: the record's key
    ``order``    what must not fall within a key of an output partition; default: the order of the inputs, by id
    ``schema``   of JSON values, as Spark writes it: makes ``json`` a struct instead of a variant
    ``sql``      a query over ``input`` and the input topics that makes ``value``, and ``key`` if that counts too
    ``output_sql``  a query over ``output`` and the output topics: what ``sql`` is compared with; default: all outputs
    ``start``, ``end``  None; a time; or offsets of partitions
    ``slack``    seconds around times in which counterparts may lie
    ``group``    consumer group whose offsets tell how far the input was processed
    ``jobs``     of the outputs, by provenance: only those of these jobs are compared; several: one that was renamed
    ``ledgers``  checkpoint directories (or addresses) of single jobs whose sinks keep provenance there
    ``command_config``  a file with TLS and SASL settings of Java's client, instead of ``config``
    ``input_bootstrap``, ``input_config``, ``input_command_config``  the cluster of the inputs, if it is another one;
                 its settings, if others
    ``registry``, ``registry_config``  the schema registry of keys and values; settings of its client
    ``expect``   how many outputs an input should have, by ``id``: see ``Expectation``
    ``unordered``  the order of outputs is not compared, so ids are compared in groups (``id_groups``)
    ``resume``   the content of the report.json of an earlier PASS of the same question: only what came after it is read

    Several outputs are one multiset for an ``id`` of the user's; with provenance a copy is one in the same output.
    """

    bootstrap: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    id: str | None = None
    input_id: str | None = None
    where: str | None = None
    output_where: str | None = None
    key: str | None = None
    order: str | None = None
    schema: str | None = None
    sql: str | None = None
    output_sql: str | None = None
    start: datetime | Offsets | None = None
    end: datetime | Offsets | None = None
    slack: float = 600.0
    group: str | None = None
    resume: Mapping[str, Any] | None = field(default=None, repr=False)
    expect: str = "one"
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """librdkafka settings: TLS and SASL."""
    jobs: tuple[str, ...] = ()
    ledgers: tuple[str, ...] = ()
    input_bootstrap: str | None = None
    input_config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    registry: str | None = None
    registry_config: Mapping[str, str] = field(default_factory=dict, repr=False)
    command_config: Path | None = None
    input_command_config: Path | None = None
    unordered: bool = False

    def __post_init__(self) -> None:
        if not self.outputs:
            raise ConfigError("there is nothing to audit: name at least one output topic or directory")
        if both := set(self.inputs) & set(self.outputs):
            raise ConfigError(f"{', '.join(sorted(both))} cannot be input and output at once")
        if self.id is None and self.sql is None and self.order is None:
            raise ConfigError("there is nothing to compare: give an id, a query or an order")
        if self.output_sql is not None and self.sql is None:
            raise ConfigError("--output-sql is compared with --sql: add it")
        if self.sql is not None and not self.inputs:
            raise ConfigError("a query needs an input topic to read")
        if self.sql is not None and (self.group or isinstance(self.start, datetime) or isinstance(self.end, datetime)):
            raise ConfigError(
                "a query is compared with everything that is read: give offsets as start and end, not times or a group"
            )
        if self.directories and (isinstance(self.start, datetime) or isinstance(self.end, datetime)):
            raise ConfigError(
                "lines of files have no times: use offsets as start and end, or audit the whole directory"
            )
        if self.expected != Expectation.parse("one") and (self.id is None or self.by_provenance or not self.inputs):
            raise ConfigError("--expect counts the outputs of each input by your own id: add --input and --id")
        if self.unordered and (self.id is None or self.by_provenance or not self.inputs or self.order or self.key):
            raise ConfigError(
                "--unordered compares ids of your own without order: add --input and --id, and omit --order and --key"
            )
        if self.input_bootstrap is not None and not self.inputs:
            raise ConfigError("--input-bootstrap names the cluster of the inputs: add --input")
        self._check_access()
        if self.registry_config and self.registry is None:
            raise ConfigError("--registry-config applies to a schema registry: add its address, --registry")
        if self.registry is not None:
            Registry(self.registry, config=self.registry_config)
        if not self.by_provenance and (unused := ["--ledger"] * bool(self.ledgers) + ["--job"] * bool(self.jobs)):
            raise ConfigError(f"{' and '.join(unused)} can only be used with --id {PROVENANCE}: add it")
        if self.resume is not None:
            self._check_resume(self.resume)

    def _check_access(self) -> None:
        if (self.input_config or self.input_command_config) and self.input_bootstrap is None:
            raise ConfigError(
                "--input-config and --input-command-config apply to the inputs' cluster: add its address, "
                "--input-bootstrap"
            )
        for prefix, config, file in (
            ("", self.config, self.command_config),
            ("input-", self.input_config, self.input_command_config),
        ):
            option = f"--{prefix}command-config"
            if config and file:
                raise ConfigError(f"{option} replaces --{prefix}config: give one of the two")
            if file is not None and not file.is_file():
                raise ConfigError(f"{option} {file} is not a file")
        if self.command_config and self.ledgers:
            raise ConfigError("--ledger reads Kafka without Java: use --config instead of --command-config")

    def _check_resume(self, earlier: Mapping[str, Any]) -> None:
        verdict = earlier.get("verdict")
        if verdict == "INCONCLUSIVE":
            raise ConfigError("the earlier audit was INCONCLUSIVE, so it proved nothing and cannot be resumed")
        if verdict != "PASS":
            raise ConfigError(
                f"the earlier audit ended with {verdict}, and a PASS for later records would hide its findings. To "
                "judge only later records, pass their offsets as the start"
            )
        if "resume" not in earlier or not self.whole:
            raise ConfigError(
                "only an audit of topics up to their ends can be resumed, without a start, an end or a "
                "group: otherwise "
                "counterparts may lie on both sides of the end of the earlier audit"
            )
        if not self.inputs and self.id is not None:
            raise ConfigError("to resume by id, name the inputs: without them, copies of earlier outputs are not found")
        if self.sql is not None:
            raise ConfigError(
                "an audit with a query cannot be resumed, because the query would see only the new inputs: run it "
                "without resume"
            )
        if self.order is not None:
            raise ConfigError(
                "an audit with an order cannot be resumed: a decrease between the two audits would not be found"
            )
        before: Mapping[str, Any] = earlier.get("question", {})
        if other := [name for name in _SAME if before.get(name) != self.asked.get(name)]:
            raise ConfigError(
                f"the earlier audit used other options ({', '.join(other)}): resume with the same options"
            )

    @property
    def whole(self) -> bool:
        """Return whether the question covers everything, up to the ends."""
        return self.start is None and self.end is None and self.group is None

    @property
    def asked(self) -> dict[str, str | float]:
        """Return the options that were given, for the report."""
        given = vars(self) | {"registry": None if self.registry is None else strip_credentials(self.registry)}
        return {
            name: value if isinstance(value, str | float) else str(value)
            for name, value in given.items()
            if value not in (None, ())
            and value is not False
            and name not in ("config", "input_config", "registry_config", "resume")
        }

    @property
    def clusters(self) -> list[tuple[ClusterAccess, tuple[str, ...]]]:
        """Return the access to each cluster and its topics, that of the inputs first."""
        own = ClusterAccess(self.bootstrap, self.config, self.command_config)
        if self.input_bootstrap is None:
            return [(own, self.topics)]
        outputs = tuple(name for name in self.topics if name not in self.inputs)
        has_own_settings = self.input_config or self.input_command_config
        given = (self.input_config, self.input_command_config) if has_own_settings else (own.config, own.command_config)
        return [(ClusterAccess(self.input_bootstrap, *given), self.inputs), (own, outputs)]

    @property
    def expected(self) -> Expectation:
        return Expectation.parse(self.expect)

    @property
    def by_provenance(self) -> bool:
        return self.id == PROVENANCE

    @property
    def topics(self) -> tuple[str, ...]:
        """Return everything to read from Kafka."""
        return (*self.inputs, *(name for name in self.outputs if "/" not in name))

    @property
    def directories(self) -> tuple[str, ...]:
        return tuple(name for name in self.outputs if "/" in name)


def moment(text: str | None) -> datetime | Offsets | None:
    """Read a start or an end: a time in ISO 8601 (UTC unless it says so), JSON offsets, or a file that holds them.

    Raises ConfigError.
    """
    if text is None or text in ("earliest", "latest"):
        return None
    try:
        if text.startswith("@"):
            text = Path(text[1:]).read_text(encoding="utf-8")
        if text.lstrip().startswith("{"):
            return {topic: {int(p): int(at) for p, at in parts.items()} for topic, parts in json.loads(text).items()}
        time = datetime.fromisoformat(text)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        example = '2026-11-21T08:00:00 or {"orders": {"0": 100}} or @offsets.json'
        raise ConfigError(f"{text!r} is neither a time nor offsets ({error}); use for example {example}") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def query(text: str | None) -> str | None:
    """Return the query, which may be in a file."""
    if text is not None and text.endswith(".sql"):
        try:
            return Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"the query {text} cannot be read: {error}") from None
    return text


def is_json_path(text: str) -> bool:
    return text.startswith("$")


def expression(text: str) -> str:
    """Return the Spark SQL of a short form; other expressions are returned unchanged."""
    if is_json_path(text):
        return f"get_json_object(value, {quoted(text)})"
    if text.startswith("header:"):
        name = quoted(text.removeprefix("header:"))
        return f"cast(try_element_at(filter(headers, h -> h.key = {name}), -1).value as string)"
    return text


def quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
