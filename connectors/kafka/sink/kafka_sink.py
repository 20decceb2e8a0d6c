"""``KafkaSink``: exactly-once output to a topic.

Rule: a guarantee that the cluster cannot keep is refused in ``check``, before anything is read.
"""

from __future__ import annotations

import copy
import typing
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from itertools import count, islice
from typing import Any, Final, Literal, TypeAlias, TypeVar

from msgspec import structs

from kafka_eos._util.secrets import mask_config
from kafka_eos.abc.auditable import AuditableTopic, SupportsLocalRun
from kafka_eos.abc.codec import Codec, RecordPart, TopicFormat
from kafka_eos.abc.committer import Committer
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.dataset import Dataset
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.abc.services import RejectRow
from kafka_eos.abc.sink import HasClock, Sink, Writer
from kafka_eos.codecs import topic_codec
from kafka_eos.codecs.field_access import read_field
from kafka_eos.codecs.type_inspection import can_be, get_return_type, known_type, type_name, without_none
from kafka_eos.connectors._shared.row_errors import encode_or_reject
from kafka_eos.connectors._shared.value_types import expect_type
from kafka_eos.connectors.kafka import job_names as names
from kafka_eos.connectors.kafka.client.access_rights import reads, writes
from kafka_eos.connectors.kafka.client.cluster import Cluster, checked, resolve_cluster
from kafka_eos.connectors.kafka.client.log_bridge import SPOKEN
from kafka_eos.connectors.kafka.client.memory import SHARE, expect_room, queue, share_of
from kafka_eos.connectors.kafka.client.native_module import load_native_module
from kafka_eos.connectors.kafka.job_names import TransactionalId
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.sink.cluster_limits import (
    CurrentLimits,
    TransactionNeeds,
    check_topic,
    check_transactions,
    fetch_topic_limits,
    transaction_timeout_ms,
)
from kafka_eos.connectors.kafka.sink.committer import KafkaCommitter
from kafka_eos.connectors.kafka.sink.dead_letters import DeadLetter, DeadLetterEncoder, RestoredRecordEncoder
from kafka_eos.connectors.kafka.sink.marker_groups import open_marker_group
from kafka_eos.connectors.kafka.sink.producer_pool import ProducerPool
from kafka_eos.connectors.kafka.sink.record_encoders import Encoder, RecordEncoder, Timestamp, ValueEncoder
from kafka_eos.connectors.kafka.sink.record_sizes import TopicLimits
from kafka_eos.connectors.kafka.sink.shared_transaction import SharedTransactions, TransactionSettings
from kafka_eos.connectors.kafka.sink.sticky_partitioner import StickyPartitioner
from kafka_eos.connectors.kafka.sink.writer import AtLeastOnceWriter, TransactionalWriter
from kafka_eos.connectors.kafka.topic_formats import described, expect_ready, parts, topic_name
from kafka_eos.core.durations import Seconds, to_seconds
from kafka_eos.core.errors import ConfigError, PlanError
from kafka_eos.core.ids import ensure_name
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Batch, Headers, RawRecord, Record, RejectedRecord

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

ProvenanceIn: TypeAlias = Literal["header", "ledger"] | None
"""Where the origin of each record is stored: with the record, next to the job's checkpoints, or nowhere."""

_PARTS: Final[tuple[RecordPart, RecordPart]] = ("key", "value")
_DEFAULTS: Mapping[str, Any] = {
    "partitioner": "murmur2_random",
    "linger.ms": 20,
    "batch.size": 262144,
    "compression.type": "lz4",
    "queue.buffering.max.messages": 500_000,
}


class KafkaSink(HasClock, AuditableTopic, SupportsLocalRun, Sink[T]):
    """A sink that writes a stream of ``T`` to ``topic``, each value exactly once.

    - ``value``: the type of the values, a codec for them, or a format such as ``avro``; default: the type of the
      stream, as its source or an annotation declares it. Bytes are written unchanged.
    - ``key``: the name of the field that is the record key, or a function from a value to it (str or bytes, or a value
      for ``key_codec``); records without a key are spread over the partitions.
    - ``headers``: a function from a value to headers to add, pairs of name and value.
    - ``timestamp``: "source" keeps the input record's timestamp, a function returns milliseconds since the Unix epoch,
      None uses the time of writing.
    - ``bootstrap_servers``: a list of host:port; default: the job's setting.
    - ``config``: librdkafka settings: SASL, TLS, ``oauth_cb``, compression … (secrets are masked in all output).
    - ``delivery``: "exactly-once" (transactions) or "at-least-once" (plain, visible at once).
    - ``transaction_timeout``: the longest outage of the whole job without loss, in seconds or as a timedelta; default:
      one hour, or the broker's ``transaction.max.timeout.ms`` if that is less.
    - ``provenance``: where the origin of each record is stored for the audit: "header", in the record's header
      ``kafka_eos``; "ledger", in the job's checkpoint directory, for exactly-once only; None, nowhere.
    """

    def __init__(
        self,
        topic: str,
        *,
        value: type[T] | Codec[T] | TopicFormat[T] | None = None,
        key: str | Callable[[T], Any] | None = None,
        key_codec: type[Any] | Codec[Any] | TopicFormat[Any] | None = None,
        headers: Callable[[T], Headers] | None = None,
        timestamp: Timestamp = "source",
        bootstrap_servers: str | None = None,
        config: Mapping[str, Any] | None = None,
        delivery: Guarantee | str = Guarantee.EXACTLY_ONCE,
        transaction_timeout: Seconds | None = None,
        provenance: ProvenanceIn = "header",
    ) -> None:
        self.topic = topic_name(topic)
        self._servers, self._config = bootstrap_servers, checked(config)
        self._delivery = _guarantee(delivery)
        self._timeout_ms = milliseconds(transaction_timeout)
        self._provenance = _provenance(provenance, self._delivery)
        self._key_codec: Codec[Any] | None = None if key_codec is None else topic_codec(key_codec, topic, "key")
        self._codec: Codec[Any] = topic_codec(value, topic, "value")
        self._given: tuple[Any, Any] = (key_codec, value)
        """The declared types of keys and values: None if a type is that of the stream."""
        self._key_field = key if isinstance(key, str) else None
        key_of = read_field(key, None) if isinstance(key, str) else key
        self._encoder: Encoder = ValueEncoder(self._codec, key_of, self._key_codec, headers, timestamp)

    @classmethod
    def records(
        cls,
        topic: str,
        *,
        key: type[K] | Codec[K] | TopicFormat[K] | None = None,
        value: type[V] | Codec[V] | TopicFormat[V] | None = None,
        timestamp: Timestamp = "source",
        **options: Any,
    ) -> KafkaSink[Record[K, V]]:
        """Return a sink for streams of ``Record``: each has its own key, headers and timestamp; value None deletes.

        ``key`` and ``value`` are types, codecs or formats; default: those of the stream's type, ``Record[K, V]``.

        ``options`` are the constructor's: bootstrap_servers, config, delivery, transaction_timeout, provenance.
        """
        sink: KafkaSink[Record[K, V]] = KafkaSink(topic, **options)
        sink._key_codec, sink._codec = keys, values = topic_codec(key, topic, "key"), topic_codec(value, topic, "value")
        sink._encoder, sink._given = RecordEncoder(values, keys, timestamp), (key, value)
        return sink

    @classmethod
    def dead_letters(cls, topic: str, **options: Any) -> KafkaSink[RejectedRecord]:
        """Return a sink that writes rejected records as dead letters."""
        sink: KafkaSink[RejectedRecord] = KafkaSink(topic, **options)
        sink._encoder = DeadLetterEncoder()
        return sink

    @classmethod
    def originals(cls, topic: str, *, in_place: bool, **options: Any) -> KafkaSink[DeadLetter]:
        """Return a sink that writes the original records of dead letters."""
        sink: KafkaSink[DeadLetter] = KafkaSink(topic, **options)
        sink._encoder = RestoredRecordEncoder(in_place)
        return sink

    def for_stream_type(self, tp: Any) -> KafkaSink[Any]:
        """Return the sink with the codecs that the stream's type gives."""
        match self._encoder:
            case ValueEncoder():
                return self._for_values(known_type(tp))
            case RecordEncoder():
                return self._for_records(known_type(tp))
        return self

    def _for_values(self, tp: Any) -> KafkaSink[Any]:
        if (tp is Record or _is_record(tp)) and self._given[1] is None:
            raise PlanError(
                f"{self!r} writes values, but the stream has whole records. Use "
                f"KafkaSink.records({self.topic!r}), or map them to their values before the sink."
            )
        if self._given[1] is not None:
            expect_type(self, self._codec, tp)
            self._expect_key_field(known_type(self._codec) if tp is None else tp)
            return self
        if tp is None:
            raise PlanError(
                f"{self!r} encodes values by their type, but the type of the stream is unknown. Give "
                "the sink value=Type, or annotate the result of the function before it. value=bytes "
                "writes bytes unchanged."
            )
        self._expect_key_field(tp)
        return self._with_codecs(self._key_codec, topic_codec(tp, self.topic, "value"))

    def _expect_key_field(self, tp: Any) -> None:
        """Raise PlanError if values of type ``tp`` have no field for the key, or it cannot be a key."""
        if self._key_field is None:
            return
        found = get_return_type(read_field(self._key_field, tp))
        expected = str | bytes if self._key_codec is None else known_type(self._key_codec)
        if not can_be(found, expected):
            remedy = f"Give the sink key_codec={type_name(found)}, or" if self._key_codec is None else "Give it"
            raise PlanError(
                f"{self!r} writes keys of type {type_name(expected)}, and {self._key_field!r} is of type "
                f"{type_name(found)}. {remedy} a function as key=."
            )

    def _for_records(self, tp: Any) -> KafkaSink[Any]:
        if tp is not None and not can_be(tp, Record):
            raise PlanError(
                f"{self!r} writes whole records, but the stream has values of type {type_name(tp)}. Use "
                f"KafkaSink({self.topic!r}), or map them to Record before the sink."
            )
        known = typing.get_args(tp) if _is_record(tp) else (None, None)
        types = [known_type(without_none(part)) for part in known]
        codecs = []
        for part, given, found in zip(_PARTS, self._given, types, strict=True):
            if given is None and found is None:
                raise PlanError(
                    f"{self!r} encodes records by the types of their keys and values, and the stream's type does not "
                    f"declare that of the {part}. Give the sink {part}=Type, or annotate the result of the function "
                    f"before it with Record[K, V]. {part}=bytes writes bytes unchanged."
                )
            codecs.append(topic_codec(found if given is None else given, self.topic, part))
            expect_type(self, codecs[-1], found, part)
        return self._with_codecs(*codecs)

    def _with_codecs(self, key: Codec[Any] | None, value: Codec[Any]) -> KafkaSink[Any]:
        sink = copy.copy(self)
        sink._key_codec, sink._codec = key, value
        sink._encoder = structs.replace(self._encoder, key_codec=key, value=value)  # type: ignore[type-var]
        return sink

    @property
    def connection(self) -> Mapping[str, Any]:
        """Return the sink's cluster arguments, for another connector to the same cluster."""
        return {"bootstrap_servers": self._servers, "config": self._config}

    @property
    def default_name(self) -> str:
        """Return the topic."""
        return self.topic

    @property
    def guarantee(self) -> Guarantee:
        return self._delivery

    def trade_offs(self) -> Sequence[str]:
        """Return the trade-offs of this sink."""
        if self._delivery is Guarantee.AT_LEAST_ONCE:
            return ("visible at once: after a restart, output since the last checkpoint is written again",)
        return (
            "readers need isolation.level=read_committed, and cannot read past the oldest open "
            "transaction of a partition",
            "if an outage of the job is longer than the transaction timeout, prepared output is "
            "aborted: the job rolls back one epoch, or stops",
        )

    def describe_client(self) -> str:
        """Return whether records are written in batches by kafka-eos-native, and why not."""
        return load_native_module().describe()

    def describe(self) -> Mapping[str, Json]:
        return {
            "connector": "kafka",
            "topic": self.topic,
            "bootstrap_servers": self._servers,
            "delivery": self._delivery.value,
            "transaction_timeout_ms": self._timeout_ms,
            **({} if self._provenance == "header" else {"provenance": self._provenance}),
            **described(self.codecs()),
            "config": {**mask_config(self._config)},
        }

    def __repr__(self) -> str:
        where = f", bootstrap_servers={self._servers!r}" if self._servers else ""
        config = f", config={mask_config(self._config)}" if self._config else ""
        return f"KafkaSink({self.topic!r}{where}{config}, delivery={self._delivery.value!r})"

    def list_datasets(self, ctx: JobContext) -> Sequence[Dataset]:
        """Return the topic."""
        return [self._cluster(ctx).name_dataset(self.topic)]

    def codecs(self) -> Mapping[str, Codec[Any]]:
        """Return the codecs of keys and values."""
        return parts(self._key_codec, self._codec)

    def scope(self, ctx: JobContext) -> str:
        return self._cluster(ctx).scope

    def check(self, ctx: JobContext) -> Sequence[str]:
        """Check the environment at a start; see ``Sink.check``. Raise Retryable if the cluster cannot be reached."""
        ensure_name(ctx.job, "the job's name")
        codec_notices = expect_ready(self._key_codec, self._codec)
        with KafkaRequests(self._cluster(ctx)) as rpc:
            is_staged = self._delivery is Guarantee.EXACTLY_ONCE
            # The marker of an epoch is an offset of the topic, which needs the permission to read it.
            needed = [writes(self.topic), *([reads(self.topic)] if is_staged else [])]
            notices = check_topic(rpc, self.topic, needed)
            if is_staged:
                notices += check_transactions(rpc, self._timeout_ms, TransactionNeeds.of(ctx.settings))
        return [*codec_notices, *notices]

    def advice(self, ctx: JobContext) -> str:
        """Return advice for a cluster that does not respond."""
        if self._servers is None:
            servers, origin = (ctx.settings.get(f"bootstrap_servers{of}", "unknown") for of in ("", "_origin"))
            setting = f"bootstrap_servers is {servers}, from {origin}"
        else:
            setting = f"the sink has bootstrap_servers={self._servers!r}"
        return (
            f"Check that Kafka runs and accepts this job's login: {setting}. For a local broker: kafka-eos broker start"
        )

    def clock(self, ctx: JobContext) -> tuple[float, float] | None:
        """Return the difference of the cluster's clock, and its possible error."""
        with KafkaRequests(self._cluster(ctx)) as rpc:
            return rpc.clock()

    def writer(self, ctx: TaskContext) -> Writer[T]:
        limits = _limits(ctx, self._cluster(ctx.job), self.topic)
        where = batching(self._cluster(ctx.job), limits.latest)
        if self._delivery is Guarantee.AT_LEAST_ONCE:
            config = producer_config(where, 120_000, share_of(ctx.job))
            deadline = config["message.timeout.ms"] / 1000
            header = self._provenance == "header"
            return AtLeastOnceWriter(ctx, limits, self._encoder, config, deadline, header, where.scope)
        transactions, partitioner = self._transactions(ctx, where), self.audit_partitioner(ctx.job)
        provenance = self._places(ctx, partitioner) if self._provenance == "ledger" else self._provenance
        return TransactionalWriter(ctx, limits, self._encoder, transactions, provenance, partitioner)

    def committer(self, ctx: JobContext) -> Committer:
        return KafkaCommitter(self._cluster(ctx), ctx)

    def audit_log(self, ctx: JobContext) -> tuple[str, str, Mapping[str, Any]]:
        """Return topic, bootstrap servers and librdkafka settings. For the audit."""
        where = self._cluster(ctx)
        return self.topic, where.bootstrap, where.config

    def audit_partitioner(self, ctx: JobContext) -> str | None:
        """Return the name of the client's partitioner; None if only the client knows it. For the audit."""
        given = self._cluster(ctx).config
        return None if "default.topic.config" in given else str(given.get("partitioner", _DEFAULTS["partitioner"]))

    @property
    def audit_has_provenance(self) -> bool:
        """Return whether records contain their origin. For the audit."""
        return self._provenance is not None

    @property
    def audit_codec(self) -> Codec[Any]:
        """Return the codec of the values. For the audit."""
        return self._codec

    def audit_rows(
        self, batch: Batch[T], operator: str, reject: RejectRow
    ) -> tuple[Batch[T], Sequence[tuple[bytes | None, bytes | None, Headers, int]]]:
        """Return the rows that the writer sends, with key, value, the user's headers and timestamp of each. For the
        audit."""
        kept, written = self.written(batch, operator, reject)
        return kept, [(record.key, record.value, record.headers, record.timestamp) for record in written]

    def written(self, batch: Batch[T], operator: str, reject: RejectRow) -> tuple[Batch[T], list[RawRecord]]:
        """Return the rows that the writer sends, and their records without provenance. For tests.

        A timestamp of -1 is the time at which the record is sent. Partition and offset are -1: only the broker knows
        them.
        """
        kept, columns = encode_or_reject(self._encoder, batch, operator, reject)
        keys = (key.encode() if isinstance(key, str) else key for key in columns.keys)
        rows = zip(islice(keys, len(kept)), columns.values, islice(columns.timestamps, len(kept)),
                   map(tuple, columns.headers or [()] * len(kept)), strict=True)  # fmt: skip
        return kept, [RawRecord(self.topic, -1, -1, time or -1, key, value, more) for key, value, time, more in rows]

    def _cluster(self, ctx: JobContext) -> Cluster:
        return resolve_cluster(self._servers, self._config, ctx)

    def _places(self, ctx: TaskContext, partitioner: str | None) -> StickyPartitioner:
        """Return the partitioner that all writers of the topic share in this session."""
        where = self._cluster(ctx.job)
        key = f"{where.scope}:{where.fingerprint}:{self.topic}"
        return ctx.services.session.get(StickyPartitioner, key, lambda: StickyPartitioner(partitioner, ctx.subtask))

    def _transactions(self, ctx: TaskContext, where: Cluster) -> SharedTransactions:
        """Return the transactions of a worker session and client configuration."""
        key = f"{where.scope}:{where.fingerprint}:{self._timeout_ms}"
        return ctx.services.session.get(
            SharedTransactions, key, lambda: _open_transactions(ctx, where, self._timeout_ms)
        )


def _is_record(tp: Any) -> bool:
    """Return whether it is ``Record[K, V]``."""
    return typing.get_origin(tp) is Record


def _limits(ctx: TaskContext, where: Cluster, topic: str) -> CurrentLimits:
    """Return the topic's limits, queried once per session.

    A limit that is raised while a job runs applies to the next row that exceeds it, any other change from the next
    attempt.
    """

    def fetch() -> TopicLimits:
        with KafkaRequests(where) as rpc:
            return fetch_topic_limits(rpc, topic, where.config)

    key = f"{where.scope}:{where.fingerprint}:{topic}"
    return ctx.services.session.get(CurrentLimits, key, lambda: CurrentLimits(fetch))


def batching(where: Cluster, to: TopicLimits) -> Cluster:
    """Return ``where`` with batches that do not exceed the topic's limit."""
    size = int(where.config.get("batch.size", _DEFAULTS["batch.size"]))
    if to.limit is None or size <= to.limit:
        return where
    return replace(where, config={**where.config, "batch.size": max(1, to.limit)})


def _open_transactions(ctx: TaskContext, where: Cluster, timeout_ms: int | None) -> SharedTransactions:
    job, groups = ctx.job, names.marker_groups(ctx.job, ctx.subtask)
    with ExitStack() as opened:
        rpc = opened.enter_context(KafkaRequests(where))
        timeout = transaction_timeout_ms(rpc, timeout_ms)
        config = producer_config(where, timeout, share_of(job))
        pool = ProducerPool(
            lambda slot: str(TransactionalId(job.job, job.identity, job.term, ctx.subtask, slot)),
            ctx.services.session.get(count, "slots of producers", count).__next__,
            lambda: {**producer_config(where, timeout, share_of(job)), "transaction.timeout.ms": timeout},
        )
        opened.pop_all()
    deadline = config["message.timeout.ms"] / 1000
    terms = TransactionSettings(where.scope, job.term.n, timeout, deadline)
    return SharedTransactions(pool, terms, rpc, cache(lambda slot: open_marker_group(where, f"{groups}.{slot}")))


def producer_config(where: Cluster, timeout_ms: int, share: int = SHARE) -> dict[str, Any]:
    """Return the settings of a producer whose transactions last ``timeout_ms``, without its transactional id.

    ``share``: bytes, of which its queue gets two shares; see ``memory``.
    librdkafka requires both timeouts to be within the transaction's, from which its defaults would be derived.
    """
    lasting = {"message.timeout.ms": min(120_000, timeout_ms), "socket.timeout.ms": min(30_000, timeout_ms)}
    config = where.build_client_config(
        {**_DEFAULTS, **SPOKEN, **lasting, **queue(share)}, {"enable.idempotence": True, "acks": "all"}
    )
    expect_room(config)
    for key in ("message.timeout.ms", "socket.timeout.ms"):
        config[key] = int(config[key])
        if config[key] > timeout_ms:
            raise ConfigError(f"config[{key!r}]={config[key]} exceeds the transaction timeout of {timeout_ms} ms.")
    return config


def _guarantee(delivery: Guarantee | str) -> Guarantee:
    try:
        return Guarantee(delivery)
    except ValueError:
        raise ConfigError(f'delivery={delivery!r}: use "exactly-once" or "at-least-once".') from None


def _provenance(given: object, delivery: Guarantee) -> ProvenanceIn:
    if given == "ledger" and delivery is Guarantee.AT_LEAST_ONCE:
        raise ConfigError(
            'provenance="ledger" requires transactions, but an at-least-once sink has none: use "header" or None.'
        )
    match given:
        case "header" | "ledger" | None:
            return given
        case bool():
            instead = '"header"' if given else "None"
        case _:
            instead = '"header", "ledger" or None'
    raise ConfigError(f"provenance={given!r}: use {instead}.")


def milliseconds(timeout: Seconds | None) -> int | None:
    """Return a transaction timeout, given in seconds or as a timedelta. Raise ConfigError below one second."""
    if timeout is None:
        return None
    seconds = float(to_seconds(timeout))
    if seconds < 1:
        raise ConfigError(f"transaction_timeout={timeout!r}: use at least one second.")
    return int(seconds * 1000)
