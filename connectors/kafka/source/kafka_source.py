"""``KafkaSource``: a topic that can be read again from any checkpoint.

Rule: the checkpoint is the source of truth. Positions that the topic cannot serve any more are an error (InputLost),
never a silent jump. The consumer group's offsets are written for lag tools only.

After a crash the next attempt reads from the positions in the manifest of the newest decided epoch; positions that were
captured for a later epoch are forgotten.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, TypedDict, TypeVar, Unpack, overload

from kafka_eos._util.secrets import mask_config
from kafka_eos.abc.auditable import AuditableSource, SampleStart, SupportsSampling
from kafka_eos.abc.codec import Codec, SchemaChecks, TopicFormat
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.dataset import Dataset
from kafka_eos.abc.incarnation import IncarnationSign
from kafka_eos.abc.sink import Sink
from kafka_eos.abc.source import PositionsOrRetry, Reader, Source, SupportsIdentityCheck, get_or_retry
from kafka_eos.connectors.kafka import job_names as names
from kafka_eos.connectors.kafka.client.cluster import Cluster, checked, resolve_cluster
from kafka_eos.connectors.kafka.client.credentials import texts
from kafka_eos.connectors.kafka.client.librdkafka import AdminClient, map_errors
from kafka_eos.connectors.kafka.client.log_bridge import SILENT, SPOKEN
from kafka_eos.connectors.kafka.client.memory import read_ahead, share_of
from kafka_eos.connectors.kafka.client.native_module import load_native_module
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.sink.cluster_limits import check_table_retention
from kafka_eos.connectors.kafka.sink.kafka_sink import KafkaSink
from kafka_eos.connectors.kafka.source.end_offsets import EndingOffsets, Until, expect_behind
from kafka_eos.connectors.kafka.source.group_offsets import (
    list_committers,
    list_group_incarnations,
    offsets_by_topic,
)
from kafka_eos.connectors.kafka.source.message_decoder import HeaderFilter, MessageDecoder
from kafka_eos.connectors.kafka.source.positions import (
    replaced,
    topic_of,
)
from kafka_eos.connectors.kafka.source.reader import KafkaReader
from kafka_eos.connectors.kafka.source.record_sample import sample_records
from kafka_eos.connectors.kafka.source.replay_decoding import encode_record, replay
from kafka_eos.connectors.kafka.source.split_discovery import SplitDiscovery
from kafka_eos.connectors.kafka.source.subscription import Subscription, Topics
from kafka_eos.connectors.kafka.source.topic_codecs import TopicCodecs
from kafka_eos.connectors.kafka.source.topic_survey import (
    STABLE_OFFSET,
    Start,
    TopicSurvey,
)
from kafka_eos.connectors.kafka.topic_formats import described, expect_readable
from kafka_eos.core.errors import ConfigError, Retryable
from kafka_eos.core.ids import EpochId, SplitId
from kafka_eos.core.json_values import Json, Positions
from kafka_eos.core.records import Batch, RawRecord, Record

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_SHOWN_WITHIN = 2.0
"""Seconds to report an epoch's offsets: nothing depends on them, and the next epoch waits for it."""
_READ: Mapping[str, Any] = {
    "fetch.queue.backoff.ms": 5,
    "fetch.wait.max.ms": 100,
}
_READ_ALWAYS: Mapping[str, Any] = {
    "isolation.level": "read_committed",
    "check.crcs": True,  # costs under 0.05 µs of 0.65 µs per record of 200 bytes
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}


class ReadOptions(TypedDict, total=False):
    """The options that ``KafkaSource`` and ``KafkaSource.records`` take besides the types."""

    start: Start
    until: Until | None
    header_filter: HeaderFilter | None
    exclude: Collection[str]
    bootstrap_servers: str | None
    group_id: str | None
    config: Mapping[str, Any] | None
    allow_feedback: bool


class KafkaSource(SupportsIdentityCheck, AuditableSource, SupportsSampling, Source[T]):
    """A source that reads a topic, several topics, or all that match a pattern, as a stream of ``T``.

    - ``topics``: a topic's name, a list of names, or ``re.compile(...)``, which must match the whole name. Matching
      topics that are created later are read from their beginning.
    - ``value``: the type of the values, a codec for them, or a format such as ``avro``; default raw bytes.
    - ``start``: where the job's very first start begins: "earliest", "latest", or a datetime (the first record at or
      after it; local time without a timezone). Later the checkpoint decides.
    - ``until``: the final end of the source: "latest", the records at the first start; a past datetime; or offsets, by
      partition of the one topic, or by "topic/partition". Default: unbounded.
    - ``header_filter``: a function of a record's headers, a dict. Records for which it is false are filtered out and
      counted, without decoding.
    - ``exclude``: topics that match the pattern and are not read, even if the job has read them before.
    - ``bootstrap_servers``: a list of host:port; default: the job's setting.
    - ``group_id``: the consumer group that receives offsets for lag tools; default: the job's name.
    - ``config``: librdkafka settings (secrets are masked in all output).
    - ``allow_feedback``: the pipeline may write into a topic that it reads. Default: such a plan is refused, because
      rows usually circulate forever. Dead letters may never return to their own source.
    """

    @overload
    def __init__(
        self: KafkaSource[bytes], topics: Topics, *, value: None = None, **options: Unpack[ReadOptions]
    ) -> None: ...

    @overload
    def __init__(
        self, topics: Topics, *, value: type[T] | Codec[T] | TopicFormat[T], **options: Unpack[ReadOptions]
    ) -> None: ...

    def __init__(
        self,
        topics: Topics,
        *,
        value: type[T] | Codec[T] | TopicFormat[T] | None = None,
        start: Start = "earliest",
        until: Until | None = None,
        header_filter: HeaderFilter | None = None,
        exclude: Collection[str] = (),
        bootstrap_servers: str | None = None,
        group_id: str | None = None,
        config: Mapping[str, Any] | None = None,
        allow_feedback: bool = False,
    ) -> None:
        self._topics = Subscription.of(topics, exclude)
        self.topic = self._topics.text
        """The topics, for messages."""
        if not isinstance(start, datetime) and start not in ("earliest", "latest"):
            raise ConfigError(f'start={start!r}: use "earliest", "latest" or a datetime.')
        if header_filter is not None and not callable(header_filter):
            raise ConfigError(f"header_filter must be a function of the headers of a record, not {header_filter!r}")
        if isinstance(until, datetime):
            expect_behind(until, start)
        end = None if until is None else EndingOffsets.of(until, self._topics)
        self._discovery = SplitDiscovery(self._topics, start, end)
        self._servers = bootstrap_servers
        self._group = group_id
        self._allow_feedback = allow_feedback
        self._config = checked(config)
        self._filter = header_filter
        self._codecs = TopicCodecs(self._topics, value)
        self.value_type = self._codecs.of_any["value"].type
        self._decoding = MessageDecoder(self._codecs.columns, header_filter)
        self._admin: AdminClient | None = None
        self._admin_secrets: Mapping[str, str] = {}
        self._showing: KafkaRequests | None = None
        self._checking: KafkaRequests | None = None

    @overload
    @classmethod
    def records(
        cls, topics: Topics, *, key: None = None, value: None = None, **options: Unpack[ReadOptions]
    ) -> KafkaSource[Record[bytes, bytes]]: ...

    @overload
    @classmethod
    def records(
        cls,
        topics: Topics,
        *,
        key: type[K] | Codec[K] | TopicFormat[K],
        value: None = None,
        **options: Unpack[ReadOptions],
    ) -> KafkaSource[Record[K, bytes]]: ...

    @overload
    @classmethod
    def records(
        cls,
        topics: Topics,
        *,
        key: None = None,
        value: type[V] | Codec[V] | TopicFormat[V],
        **options: Unpack[ReadOptions],
    ) -> KafkaSource[Record[bytes, V]]: ...

    @overload
    @classmethod
    def records(
        cls,
        topics: Topics,
        *,
        key: type[K] | Codec[K] | TopicFormat[K],
        value: type[V] | Codec[V] | TopicFormat[V],
        **options: Unpack[ReadOptions],
    ) -> KafkaSource[Record[K, V]]: ...

    @classmethod
    def records(
        cls, topics: Topics, *, key: Any = None, value: Any = None, **options: Unpack[ReadOptions]
    ) -> KafkaSource[Record[Any, Any]]:
        """Return a source of whole records, with key, headers and timestamp; tombstones have value None.

        ``key`` and ``value`` are types, codecs or formats; default raw bytes. The rest is as in the constructor.
        """
        source: KafkaSource[Record[Any, Any]] = KafkaSource(topics, value=value, **options)
        source._codecs = TopicCodecs(source._topics, value, key, whole=True)
        types = tuple(source._codecs.of_any[part].type for part in ("key", "value"))
        whole: Any = Record
        source.value_type = None if None in types else whole[types]
        source._decoding = MessageDecoder(source._codecs.columns, source._filter, has_keys=True)
        return source

    def find_table_obstacle(self) -> str | None:
        """Return why no table can be built from these topics."""
        if self._discovery.start != "earliest":
            return 'start without the existing records of its topic: leave start= out, or set it to "earliest".'
        if self.several:
            return (
                "be built from several topics, where the newer of two values of a key is unknown: read it from one "
                "topic."
            )
        return None

    def find_feedback(self, sink: Sink[Any], *, refused: bool, ctx: JobContext | None) -> str | None:
        """Return why writing to this sink would create a loop, or None.

        A source with an end creates no loop: the sink writes after that end.
        """
        if self._discovery.end is not None or not isinstance(sink, KafkaSink) or (self._allow_feedback and not refused):
            return None
        why = self._topics.find_feedback(sink.topic, refused=refused)
        return why if why is not None and self._shares_cluster(sink, ctx) else None

    def _shares_cluster(self, sink: KafkaSink[Any], ctx: JobContext | None) -> bool:
        """Return whether the sink writes to the cluster of this source. With ``ctx``, the clusters' ids tell."""
        if sink.connection["bootstrap_servers"] == self._servers:
            return True
        if ctx is None:
            return False
        target = resolve_cluster(sink.connection["bootstrap_servers"], sink.connection["config"], ctx)
        with KafkaRequests(self._cluster(ctx)) as of_source, KafkaRequests(target) as of_sink:
            read, written = of_source.cluster_id(), of_sink.cluster_id()
        return read == written != ""

    @property
    def several(self) -> bool:
        """Return whether it may read several topics."""
        return self._topics.several

    @property
    def only_topic(self) -> str | None:
        """Return the topic if the source can read only one."""
        return self._topics.only

    def may_read(self, topic: str) -> bool:
        """Return whether the source reads a topic of this name."""
        return self._topics.can_read(topic)

    @property
    def default_name(self) -> str | None:
        """Return the topic if it is a single one."""
        return self.only_topic

    @property
    def connection(self) -> Mapping[str, Any]:
        """Return the source's cluster arguments, for another connector to the same cluster."""
        return {"bootstrap_servers": self._servers, "config": self._config}

    def describe(self) -> Mapping[str, Json]:
        description: dict[str, Json] = {
            "connector": "kafka",
            **self._topics.describe(),
            "bootstrap_servers": self._servers,
            "start": str(self._discovery.start),
            "group_id": self._group,
            **described(self._codecs.of_any),
            "config": {**mask_config(self._config)},
        }
        if self._discovery.end is not None:
            description["until"] = self._discovery.end.text
        if self._filter is not None:
            description["header_filter"] = True
        return description

    def __repr__(self) -> str:
        where = f", bootstrap_servers={self._servers!r}" if self._servers else ""
        config = f", config={mask_config(self._config)}" if self._config else ""
        return f"KafkaSource({self.topic!r}{where}{config})"

    def codecs(self) -> Mapping[str, SchemaChecks]:
        """Return the codecs of keys and values."""
        return self._codecs.named()

    def describe_client(self) -> str:
        """Return whether records are read in batches by kafka-eos-native, and why not."""
        return load_native_module().describe()

    def check(self, ctx: JobContext, known: Positions | None) -> Sequence[str]:
        """Check the environment at a start, and return notices."""
        notices = [*expect_readable(*self.codecs().values())]
        if self._topics.pattern is not None:
            with KafkaRequests(self._cluster(ctx)) as rpc:
                listed = rpc.topic_names()
                found = rpc.topics(self._topics.select_topics(listed))
            forbidden = [name for name, facts in found.items() if facts is not None and not facts.may_be_read]
            notices += self._topics.find_unknown_exclusions(listed, known or ())
            notices += self._topics.describe_forbidden(forbidden)
        return notices

    def check_table(self, ctx: JobContext) -> Sequence[str]:
        """Return notices about topics that are read as tables."""
        with KafkaRequests(self._cluster(ctx)) as rpc:
            return [notice for topic in self._topics.names if (notice := check_table_retention(rpc, topic))]

    def scope(self, ctx: JobContext) -> str:
        """Return an id of the cluster and its settings: sources with the same scope are queried together."""
        where = self._cluster(ctx)
        return f"{where.scope}/{where.fingerprint}"

    def server(self, ctx: JobContext) -> str:
        """Return the name of the cluster, which is the scope of sinks there."""
        return self._cluster(ctx).scope

    def list_datasets(self, ctx: JobContext) -> Sequence[Dataset]:
        """Return the topics; for a pattern, the pattern."""
        where = self._cluster(ctx)
        return [where.name_dataset(topic) for topic in self._topics.names or [self.topic]]

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        """Return the partitions with their positions; see ``Source.discover``. Raise Retryable without a response."""
        return _single_answer(self.discover_all(ctx, [(self, known)]))

    def discover_all(
        self, ctx: JobContext, asked: Sequence[tuple[KafkaSource[Any], Positions | None]]
    ) -> Sequence[PositionsOrRetry]:
        with self._survey(ctx, asked) as survey:
            survey.fetch_offsets(
                lookup for source, known in asked for lookup in source._discovery.list_lookups(survey, known)
            )
            return [get_or_retry(partial(source._discovery.find_positions, survey, known)) for source, known in asked]

    def bounds(self, positions: Positions) -> Positions | None:
        return self._discovery.get_bounds(positions)

    def list_excluded_splits(self, positions: Positions) -> Collection[SplitId]:
        return self._discovery.list_finished_splits(positions)

    def get_end_positions(self, ctx: JobContext) -> Positions:
        """Return the positions after the last record that a read_committed reader can see now."""
        return _single_answer(self.get_all_end_positions(ctx, [self]))

    def get_all_end_positions(self, ctx: JobContext, asked: Sequence[KafkaSource[Any]]) -> Sequence[PositionsOrRetry]:
        with self._survey(ctx, [(source, None) for source in asked]) as survey:
            survey.fetch_offsets(
                (topic, STABLE_OFFSET) for source in asked for topic in source._topics.select_topics(survey.readable)
            )
            return [get_or_retry(partial(source._discovery.find_end_positions, survey)) for source in asked]

    def ensure_same_input(self, ctx: JobContext, read: Sequence[tuple[KafkaSource[Any], Positions]]) -> None:
        """Check that no topic was replaced under its name."""
        known = {
            topic_of(split): (source, split, at)
            for source, positions in read
            for split, at in source._topics.drop_excluded(positions).items()
        }
        if self._checking is None:
            self._checking = KafkaRequests(self._cluster(ctx))
        for topic, ids in self._checking.topic_ids(known).items():
            source, split, at = known[topic]
            if not ids:
                raise source._topics.gone(topic)
            if others := sorted(ids - {at.get("topic_id")}):
                raise replaced(split, at, others[0])

    def reader(self, ctx: TaskContext, positions: Positions) -> Reader[T]:
        self._topics.check(positions)
        where = self._cluster(ctx.job)
        group = self._group or ctx.job.job
        defaults = {**_READ, **SPOKEN, **read_ahead(share_of(ctx.job), len(positions))}
        config = partial(where.build_client_config, defaults, {**_READ_ALWAYS, "group.id": group})
        reject = partial(ctx.services.reject_record, ctx.operator)
        left_out = partial(ctx.services.count_filtered, ctx.operator)
        is_excluded = self._topics.is_excluded
        return KafkaReader(config, ctx.operator, self.topic, positions, self._decoding, reject, left_out, is_excluded)

    def audit_logs(self, ctx: JobContext, read: Collection[SplitId]) -> Sequence[tuple[str, str, Mapping[str, Any]]]:
        """Return topic, bootstrap servers and librdkafka settings of each topic that was ``read``. For the audit."""
        where = self._cluster(ctx)
        topics = dict.fromkeys((*self._topics.names, *sorted({topic_of(split) for split in read})))
        return [(topic, where.bootstrap, where.config) for topic in topics]

    def decode(
        self, source_name: str, raws: Sequence[RawRecord], reject: Callable[[RawRecord, Exception], None]
    ) -> Batch[T]:
        """Return the batch that the reader makes of ``raws``, without rows that ``reject`` took. For the audit."""
        return replay(source_name, raws, self._decoding, reject)

    def raw(self, value: T, offset: int, timestamp: int) -> RawRecord:
        """Return the record that the reader decodes to ``value``. Errors of its codec propagate. For tests."""
        topic = self._topics.names[0] if self._topics.names else self._topics.text
        return encode_record(topic, offset, timestamp, value, self._codecs.of(topic))

    def sample(self, ctx: JobContext, count: int, start: SampleStart) -> Sequence[RawRecord]:
        """Return some records, merged by their timestamps. For ``preview``."""
        return sample_records(self._cluster(ctx), self._topics.select_topics, count, start)

    def notify_committed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        """Commit the group's offsets for lag tools; their metadata names the writer and the epoch."""
        note = names.offset_metadata(ctx, epoch)
        for topic, offsets in offsets_by_topic(self._topics.drop_excluded(positions)).items():
            if self._showing is None:
                self._showing = KafkaRequests(self._cluster(ctx), _SHOWN_WITHIN)
            self._showing.commit_offsets(self._group or ctx.job, topic, offsets, note)

    def list_incarnations(self, ctx: JobContext) -> Sequence[IncarnationSign]:
        """Return signs of incarnations in the group's offsets; offsets of other programs are ignored."""
        group = self._group or ctx.job
        with KafkaRequests(self._cluster(ctx)) as rpc:
            return list_group_incarnations(ctx.job, group, list_committers(rpc, group, self._topics))

    def _cluster(self, ctx: JobContext) -> Cluster:
        return resolve_cluster(self._servers, self._config, ctx)

    def _client(self, where: Cluster) -> AdminClient:
        config = where.build_client_config(SILENT, {})
        if self._admin is None or texts(config) != self._admin_secrets:
            with map_errors("admin client"):
                self._admin, self._admin_secrets = AdminClient(config), texts(config)
        return self._admin

    @contextmanager
    def _survey(
        self, ctx: JobContext, asked: Sequence[tuple[KafkaSource[Any], Positions | None]]
    ) -> Iterator[TopicSurvey]:
        """Yield a survey of the cluster for these sources; replace the client if offsets could not be read.

        The old client may not know a new partition or, after a broker's outage, the new leader epoch for minutes.
        """
        where = self._cluster(ctx)

        def select_surveyed(listed: Sequence[str]) -> Collection[str]:
            return set[str]().union(*(source._discovery.select_surveyed(listed, at or {}) for source, at in asked))

        by_pattern = any(source._topics.pattern is not None for source, _ in asked)
        known = [source._topics.drop_excluded(at or {}) for source, at in asked]
        survey = TopicSurvey(where, select_surveyed, lambda: self._client(where), known, by_pattern=by_pattern)
        yield survey
        if survey.in_trouble:
            self._admin = None


def _single_answer(answers: Sequence[PositionsOrRetry]) -> Positions:
    """Return the result for the only source that was queried."""
    (answer,) = answers
    if isinstance(answer, Retryable):
        raise answer
    return answer
