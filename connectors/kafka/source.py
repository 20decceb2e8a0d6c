"""``KafkaSource``: a topic that can be read again from any checkpoint.

Rule: the checkpoint is the truth. Positions that the topic cannot serve any more are an error (InputLost),
never a silent jump; the consumer group's offsets are written for lag tools only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypeVar, overload

from kafka_eos.connectors.kafka import names
from kafka_eos.connectors.kafka.client import AdminClient, kafka_errors
from kafka_eos.connectors.kafka.client_log import SILENT, SPOKEN
from kafka_eos.connectors.kafka.credentials import texts
from kafka_eos.connectors.kafka.decoding import record_decoder, value_decoder
from kafka_eos.connectors.kafka.formats import described, expect_readable, parts
from kafka_eos.connectors.kafka.memory import read_ahead, share_of
from kafka_eos.connectors.kafka.positions import check_splits, continued, offset_of, partition_of, positions
from kafka_eos.connectors.kafka.reader import KafkaReader
from kafka_eos.connectors.kafka.replay import replay, unread
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.settings import Cluster, checked, cluster
from kafka_eos.connectors.kafka.sink import topic_name
from kafka_eos.connectors.kafka.survey import END, LOG_END, LOG_START, Rule, Start, Survey
from kafka_eos.errors import ConfigError, Retryable
from kafka_eos.ids import EpochId, JobIdentity, Term
from kafka_eos.interfaces import (
    Answer,
    Codec,
    Guarantee,
    JobContext,
    Json,
    Life,
    Part,
    Positions,
    Reader,
    TaskContext,
    TopicFormat,
)
from kafka_eos.records import Batch, RawRecord, Record
from kafka_eos.schemas import topic_codec
from kafka_eos.secrets import masked

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")

_SHOWN_WITHIN = 2.0
"""Seconds that an epoch may wait for its offsets to be shown: nothing rests on them, and the next one waits for it."""
_READ: Mapping[str, Any] = {
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 200_000,
    "fetch.message.max.bytes": 4_194_304,
    "fetch.wait.max.ms": 100,
}
_READ_ALWAYS: Mapping[str, Any] = {
    "isolation.level": "read_committed",
    "check.crcs": True,  # costs less than can be measured: under 0.05 µs of 0.65 µs a record of 200 bytes
    "auto.offset.reset": "error",
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
}


class KafkaSource(Generic[T]):
    """Reads ``topic`` as a stream of ``T``; union several sources to read several topics.

    ``value``     the type of the values, a codec for them, or a format as ``avro`` makes; default raw bytes
    ``start``     where the job's very first start begins: "earliest", "latest", or a datetime (the first record
                  at or after it; without a timezone it is local time). Later the checkpoint decides.
    ``bootstrap_servers``  host:port list; default: the job's setting
    ``group_id``  consumer group that receives offsets for lag tools; default: the job's name
    ``config``    librdkafka settings (secrets are masked in all output)
    """

    @overload
    def __init__(
        self: KafkaSource[bytes],
        topic: str,
        *,
        value: None = None,
        start: Start = "earliest",
        bootstrap_servers: str | None = None,
        group_id: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None: ...

    @overload
    def __init__(
        self,
        topic: str,
        *,
        value: type[T] | Codec[T] | TopicFormat[T],
        start: Start = "earliest",
        bootstrap_servers: str | None = None,
        group_id: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None: ...

    def __init__(
        self,
        topic: str,
        *,
        value: type[T] | Codec[T] | TopicFormat[T] | None = None,
        start: Start = "earliest",
        bootstrap_servers: str | None = None,
        group_id: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        self.topic = topic_name(topic)
        if not isinstance(start, datetime) and start not in ("earliest", "latest"):
            raise ConfigError(f'start={start!r}: use "earliest", "latest" or a datetime.')
        self._start, self._servers, self._group = start, bootstrap_servers, group_id
        self._config = checked(config)
        codec: Any = topic_codec(value, topic, "value")
        self._codecs: tuple[Codec[Any] | None, Codec[Any]] = None, codec
        self.value_type: Any = getattr(codec, "type", None)
        """What a stream of this source holds, for codecs between workers; None if only the codec knows."""
        self._columns: Callable[..., Any] = value_decoder(codec)
        self._admin: AdminClient | None = None
        self._admin_secrets: Mapping[str, str] = {}
        self._showing: KafkaRequests | None = None

    @overload
    @classmethod
    def records(
        cls,
        topic: str,
        *,
        key: None = None,
        value: None = None,
        start: Start = "earliest",
        bootstrap_servers: str | None = None,
        group_id: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> KafkaSource[Record[bytes, bytes]]: ...

    @overload
    @classmethod
    def records(
        cls,
        topic: str,
        *,
        key: type[K] | Codec[K] | TopicFormat[K],
        value: None = None,
        start: Start = "earliest",
        bootstrap_servers: str | None = None,
        group_id: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> KafkaSource[Record[K, bytes]]: ...

    @overload
    @classmethod
    def records(
        cls,
        topic: str,
        *,
        key: None = None,
        value: type[V] | Codec[V] | TopicFormat[V],
        start: Start = "earliest",
        bootstrap_servers: str | None = None,
        group_id: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> KafkaSource[Record[bytes, V]]: ...

    @overload
    @classmethod
    def records(
        cls,
        topic: str,
        *,
        key: type[K] | Codec[K] | TopicFormat[K],
        value: type[V] | Codec[V] | TopicFormat[V],
        start: Start = "earliest",
        bootstrap_servers: str | None = None,
        group_id: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> KafkaSource[Record[K, V]]: ...

    @classmethod
    def records(
        cls,
        topic: str,
        *,
        key: Any = None,
        value: Any = None,
        start: Start = "earliest",
        bootstrap_servers: str | None = None,
        group_id: str | None = None,
        config: Mapping[str, Any] | None = None,
    ) -> KafkaSource[Record[Any, Any]]:
        """Whole records, with key, headers and timestamp; tombstones have value None.

        ``key`` and ``value`` are types, codecs or formats; default raw bytes. The rest is as in the constructor.
        """
        keys, values = topic_codec(key, topic, "key"), topic_codec(value, topic, "value")
        source: KafkaSource[Record[Any, Any]] = KafkaSource(
            topic, value=values, start=start, bootstrap_servers=bootstrap_servers, group_id=group_id, config=config
        )
        types = getattr(keys, "type", None), getattr(values, "type", None)
        whole: Any = Record
        source.value_type = None if None in types else whole[types]
        source._codecs = keys, values
        source._columns = record_decoder(keys, values)
        return source

    @property
    def skips(self) -> bool:
        """Does a job's first start leave out records that are there? A table must not."""
        return self._start != "earliest"

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    @property
    def connection(self) -> Mapping[str, Any]:
        """What it was told of its cluster, for another connector there."""
        return {"bootstrap_servers": self._servers, "config": self._config}

    def describe(self) -> Mapping[str, Json]:
        return {
            "connector": "kafka",
            "topic": self.topic,
            "bootstrap_servers": self._servers,
            "start": str(self._start),
            "group_id": self._group,
            **described(*self._codecs),
            "config": {**masked(self._config)},
        }

    def __repr__(self) -> str:
        where = f", bootstrap_servers={self._servers!r}" if self._servers else ""
        config = f", config={masked(self._config)}" if self._config else ""
        return f"KafkaSource({self.topic!r}{where}{config})"

    def codecs(self) -> Mapping[Part, Codec[Any]]:
        """See ``interfaces.HasCodecs``."""
        return parts(*self._codecs)

    def check(self) -> Sequence[str]:
        """See ``interfaces.CheckedSource``."""
        return expect_readable(*self._codecs)

    def scope(self, ctx: JobContext) -> str:
        """See ``interfaces.AskedTogether``."""
        where = self._cluster(ctx)
        return f"{where.scope}/{where.fingerprint}"

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        """See ``interfaces.Source``. Raises Retryable if the cluster cannot be reached."""
        return _told(self.discover_all(ctx, [(self, known)]))

    def discover_all(
        self, ctx: JobContext, asked: Sequence[tuple[KafkaSource[Any], Positions | None]]
    ) -> Sequence[Answer]:
        with self._survey(ctx, {source.topic for source, _ in asked}) as survey:
            survey.look((source.topic, rule) for source, known in asked for rule in source._rules(known))
            return [_answer(partial(source._discovered, survey, known)) for source, known in asked]

    def _rules(self, known: Positions | None) -> Sequence[Rule]:
        return [Rule(self._start)] if known is None else [LOG_START, LOG_END]

    def _discovered(self, survey: Survey, known: Positions | None) -> Positions:
        topic_id = survey.facts(self.topic).topic_id
        if known is None:
            return positions(self.topic, topic_id, survey.offsets(self.topic, Rule(self._start)))
        lowest, highest = survey.offsets(self.topic, LOG_START), survey.offsets(self.topic, LOG_END)
        return continued(self.topic, topic_id, known, lowest, highest)

    def ends(self, ctx: JobContext) -> Positions:
        """Up to the last record that a read_committed reader can see now."""
        return _told(self.ends_all(ctx, [self]))

    def ends_all(self, ctx: JobContext, asked: Sequence[KafkaSource[Any]]) -> Sequence[Answer]:
        with self._survey(ctx, {source.topic for source in asked}) as survey:
            survey.look((source.topic, END) for source in asked)
            return [_answer(partial(source._ends, survey)) for source in asked]

    def _ends(self, survey: Survey) -> Positions:
        return positions(self.topic, survey.facts(self.topic).topic_id, survey.offsets(self.topic, END))

    def reader(self, ctx: TaskContext, positions: Positions) -> Reader[T]:
        check_splits(self.topic, positions)
        where = self._cluster(ctx.job)
        group = self._group or ctx.job.job
        defaults = {**_READ, **SPOKEN, **read_ahead(share_of(ctx.job))}
        config = partial(where.client, defaults, {**_READ_ALWAYS, "group.id": group})
        reject = partial(ctx.services.reject_record, ctx.operator)
        return KafkaReader(config, ctx.operator, self.topic, positions, self._columns, reject)

    def audit_log(self, ctx: JobContext) -> tuple[str, str, Mapping[str, Any]]:
        """For the audit: topic, bootstrap servers and librdkafka settings."""
        where = self._cluster(ctx)
        return self.topic, where.bootstrap, where.config

    def decode(
        self, source_name: str, raws: Sequence[RawRecord], reject: Callable[[RawRecord, Exception], None]
    ) -> Batch[T]:
        """For the audit: what the reader makes of ``raws``; rows that ``reject`` took are left out."""
        return replay(source_name, raws, self._columns, reject)

    def raw(self, value: T, offset: int, timestamp: int) -> RawRecord:
        """For tests: the record of which the reader makes ``value``. Raises what its codec raises."""
        return unread(self.topic, offset, timestamp, value, *self._codecs)

    def completed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        """Show the group's progress to lag tools; the metadata names who wrote it, and the epoch."""
        note = names.offset_metadata(ctx, epoch)
        offsets = {partition_of(split): offset_of(at) for split, at in positions.items()}
        if offsets:
            if self._showing is None:
                self._showing = KafkaRequests(self._cluster(ctx), _SHOWN_WITHIN)
            self._showing.commit_offsets(self._group or ctx.job, self.topic, offsets, note)

    def lives(self, ctx: JobContext) -> Sequence[Life]:
        """By the group's offsets; those of a group that others use too count only if this package wrote them."""
        # By a request of our own: the client was seen to crash on the answer of a cluster without groups.
        group, where = self._group or ctx.job, self._cluster(ctx)
        with KafkaRequests(where) as rpc:
            facts = rpc.topic(self.topic)
            if facts is None:
                return ()  # nobody has read it; the search for partitions names all topics that are missing
            metadata = rpc.committed(group, self.topic, range(facts.partitions)).values()
        told = [names.Committed.parse(each) for each in metadata]
        return lives_of_group(ctx.job, group, [by for by in told if by is not None])

    def _cluster(self, ctx: JobContext) -> Cluster:
        return cluster(self._servers, self._config, ctx)

    def _client(self, where: Cluster) -> AdminClient:
        config = where.client(SILENT, {})
        if self._admin is None or texts(config) != self._admin_secrets:
            with kafka_errors("admin client"):
                self._admin, self._admin_secrets = AdminClient(config), texts(config)
        return self._admin

    @contextmanager
    def _survey(self, ctx: JobContext, topics: Collection[str]) -> Iterator[Survey]:
        """A look at the cluster; what nobody could tell is asked by a new client the next time.

        The old one may not know a new partition or, after a broker's outage, the new leader epoch for minutes.
        """
        where = self._cluster(ctx)
        survey = Survey(where, topics, lambda: self._client(where))
        yield survey
        if survey.in_trouble:
            self._admin = None


def _answer(ask: Callable[[], Positions]) -> Answer:
    try:
        return ask()
    except Retryable as error:
        return error


def _told(answers: Sequence[Answer]) -> Positions:
    """What the only one says that was asked."""
    (answer,) = answers
    if isinstance(answer, Retryable):
        raise answer
    return answer


def lives_of_group(job: str, group: str, told: Sequence[names.Committed]) -> list[Life]:
    """Lives of ``job`` among those who committed a group's offsets. Before identities nobody said which job it was."""
    terms: dict[JobIdentity | None, Term] = {}
    for by in told:
        if by.job == job or (by.job is None and group == job):
            terms[by.identity] = max(by.term, terms.get(by.identity, by.term))
    return [Life(identity, f"consumer group {group!r}", "committed offsets", term) for identity, term in terms.items()]
