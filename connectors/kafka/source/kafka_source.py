"""``KafkaSource``: a topic that can be read again from any checkpoint.

Rule: the checkpoint is the truth. Positions that the topic cannot serve any more are an error (InputLost),
never a silent jump; the consumer group's offsets are written for lag tools only.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Any, Generic, TypedDict, TypeGuard, TypeVar, Unpack, overload

from kafka_eos._util.secrets import masked
from kafka_eos.abc.codec import Codec, Described, TopicFormat
from kafka_eos.abc.context import JobContext, TaskContext
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.abc.incarnation import Life
from kafka_eos.abc.source import Answer, Reader
from kafka_eos.connectors.kafka import job_names as names
from kafka_eos.connectors.kafka.client.cluster import Cluster, checked, cluster
from kafka_eos.connectors.kafka.client.credentials import texts
from kafka_eos.connectors.kafka.client.librdkafka import AdminClient, kafka_errors
from kafka_eos.connectors.kafka.client.log_bridge import SILENT, SPOKEN
from kafka_eos.connectors.kafka.client.memory import read_ahead, share_of
from kafka_eos.connectors.kafka.rpc import KafkaRequests
from kafka_eos.connectors.kafka.sink.cluster_limits import rows_that_go_away
from kafka_eos.connectors.kafka.sink.kafka_sink import KafkaSink
from kafka_eos.connectors.kafka.source.decoding import Decoding, HeaderFilter
from kafka_eos.connectors.kafka.source.end_offsets import End, Until, expect_behind
from kafka_eos.connectors.kafka.source.positions import (
    continued,
    endless,
    moved,
    offset_of,
    partition_of,
    positions,
    topic_of,
    until_of,
)
from kafka_eos.connectors.kafka.source.reader import KafkaReader
from kafka_eos.connectors.kafka.source.replay_decoding import replay, unread
from kafka_eos.connectors.kafka.source.subscription import Subscription, Topics
from kafka_eos.connectors.kafka.source.topic_codecs import TopicCodecs
from kafka_eos.connectors.kafka.source.topic_survey import END, LOG_END, LOG_START, Rule, Start, Survey, is_to_come
from kafka_eos.connectors.kafka.topic_formats import described, expect_readable
from kafka_eos.core.errors import ConfigError, Retryable
from kafka_eos.core.ids import EpochId, JobIdentity, SplitId, Term
from kafka_eos.core.json_values import Json, Position, Positions
from kafka_eos.core.records import Batch, RawRecord, Record

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


class ReadOptions(TypedDict, total=False):
    """What ``KafkaSource`` and ``KafkaSource.records`` take besides the types."""

    start: Start
    until: Until | None
    header_filter: HeaderFilter | None
    exclude: Collection[str]
    bootstrap_servers: str | None
    group_id: str | None
    config: Mapping[str, Any] | None


class KafkaSource(Generic[T]):
    """Reads a topic, several, or all that match a pattern, as a stream of ``T``.

    ``topics``    a topic's name, a list of names, or ``re.compile(...)``, which the whole name must match. Topics that
                  match and are made later are read from their beginning
    ``value``     the type of the values, a codec for them, or a format as ``avro`` makes; default raw bytes
    ``start``     where the job's very first start begins: "earliest", "latest", or a datetime (the first record
                  at or after it; without a timezone it is local time). Later the checkpoint decides.
    ``until``     where the source ends for good: "latest", what is there at the first start; a datetime that is over;
                  or offsets, by partition of the one topic, or by "topic/partition". Default: never
    ``header_filter``  a function of a record's headers, a dict; records for which it is false are left out, and
                  counted, before they are decoded
    ``exclude``   topics that match the pattern and are not read, also if the job has read them
    ``bootstrap_servers``  host:port list; default: the job's setting
    ``group_id``  consumer group that receives offsets for lag tools; default: the job's name
    ``config``    librdkafka settings (secrets are masked in all output)
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
    ) -> None:
        self._topics = Subscription.of(topics, exclude)
        self.topic = self._topics.text
        """What is read, for people."""
        if not isinstance(start, datetime) and start not in ("earliest", "latest"):
            raise ConfigError(f'start={start!r}: use "earliest", "latest" or a datetime.')
        if header_filter is not None and not callable(header_filter):
            raise ConfigError(f"header_filter= is a function of the headers of a record, not {header_filter!r}")
        if isinstance(until, datetime):
            expect_behind(until, start)
        self._start, self._end = start, None if until is None else End.of(until, self._topics)
        self._servers, self._group, self._config = bootstrap_servers, group_id, checked(config)
        self._filter = header_filter
        self._codecs = TopicCodecs(self._topics, value)
        self.value_type: Any = getattr(self._codecs.of_any["value"], "type", None)
        """What a stream of this source holds, for codecs between workers; None if only the codec knows."""
        self._decoding = Decoding(self._codecs.columns, header_filter)
        self._admin: AdminClient | None = None
        self._admin_secrets: Mapping[str, str] = {}
        self._showing: KafkaRequests | None = None

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
        """Whole records, with key, headers and timestamp; tombstones have value None.

        ``key`` and ``value`` are types, codecs or formats; default raw bytes. The rest is as in the constructor.
        """
        source: KafkaSource[Record[Any, Any]] = KafkaSource(topics, value=value, **options)
        source._codecs = TopicCodecs(source._topics, value, key, whole=True)
        types = tuple(getattr(source._codecs.of_any[part], "type", None) for part in ("key", "value"))
        whole: Any = Record
        source.value_type = None if None in types else whole[types]
        source._decoding = Decoding(source._codecs.columns, source._filter)
        return source

    @property
    def skips(self) -> bool:
        """Does a job's first start leave out records that are there? A table must not."""
        return self._start != "earliest"

    def reads_back(self, sink: object, *, refused: bool) -> str | None:
        """See ``abc.ReadsBack``. With an end nothing goes round: what is written comes behind it."""
        if self._end is not None or not isinstance(sink, KafkaSink):
            return None
        if sink.connection["bootstrap_servers"] != self._servers:
            return None
        return self._topics.reads_back(sink.topic, refused=refused)

    @property
    def several(self) -> bool:
        """May it read several topics? A table must not."""
        return self._topics.several

    @property
    def only_topic(self) -> str | None:
        """The topic that it reads, if it can read no other."""
        return self._topics.only

    def may_read(self, topic: str) -> bool:
        """Is the topic one of those that it reads, as far as its name tells?"""
        return self._topics.reads(topic)

    @property
    def guarantee(self) -> Guarantee:
        return Guarantee.EXACTLY_ONCE

    @property
    def connection(self) -> Mapping[str, Any]:
        """What it was told of its cluster, for another connector there."""
        return {"bootstrap_servers": self._servers, "config": self._config}

    def describe(self) -> Mapping[str, Json]:
        said: dict[str, Json] = {
            "connector": "kafka",
            **self._topics.describe(),
            "bootstrap_servers": self._servers,
            "start": str(self._start),
            "group_id": self._group,
            **described(self._codecs.of_any),
            "config": {**masked(self._config)},
        }
        if self._end is not None:
            said["until"] = self._end.text
        if self._filter is not None:
            said["header_filter"] = True
        return said

    def __repr__(self) -> str:
        where = f", bootstrap_servers={self._servers!r}" if self._servers else ""
        config = f", config={masked(self._config)}" if self._config else ""
        return f"KafkaSource({self.topic!r}{where}{config})"

    def codecs(self) -> Mapping[str, Codec[Any] | Described]:
        """See ``abc.HasCodecs``."""
        return self._codecs.named()

    def check(self, ctx: JobContext, known: Positions | None) -> Sequence[str]:
        """See ``abc.CheckedSource``."""
        told = [*expect_readable(*self.codecs().values())]
        if self._topics.exclude:
            with KafkaRequests(self._cluster(ctx)) as rpc:
                told += self._topics.excluded_in_vain(rpc.topic_names(), known or ())
        return told

    def check_table(self, ctx: JobContext) -> Sequence[str]:
        """See ``abc.LastingSource``."""
        with KafkaRequests(self._cluster(ctx)) as rpc:
            return [notice for topic in self._topics.names if (notice := rows_that_go_away(rpc, topic))]

    def scope(self, ctx: JobContext) -> str:
        """See ``abc.AskedTogether``."""
        where = self._cluster(ctx)
        return f"{where.scope}/{where.fingerprint}"

    def discover(self, ctx: JobContext, known: Positions | None) -> Positions:
        """See ``abc.Source``. Raises Retryable if the cluster cannot be reached."""
        return _told(self.discover_all(ctx, [(self, known)]))

    def discover_all(
        self, ctx: JobContext, asked: Sequence[tuple[KafkaSource[Any], Positions | None]]
    ) -> Sequence[Answer]:
        with self._survey(ctx, asked) as survey:
            survey.look(
                (topic, rule)
                for source, known in asked
                for topic in source._topics.chosen(survey.there)
                for rule in source._rules(known)
            )
            return [_answer(partial(source._discovered, survey, known)) for source, known in asked]

    def _rules(self, known: Positions | None) -> Sequence[Rule]:
        """What is asked of each topic."""
        if known is not None:
            return [LOG_START, LOG_END]
        return [Rule.of(self._start), *([] if self._end is None else self._end.rules)]

    def _discovered(self, survey: Survey, known: Positions | None) -> Positions:
        found = self._began(survey) if known is None else self._goes_on(survey, known)
        if self._end is None:
            return endless(found)
        # What is found when the end has been looked up came behind it.
        there = {split: at for split, at in found.items() if split in known} if self._has_ended(known) else found
        return self._end.set(there, survey)

    def _has_ended(self, known: Positions | None) -> TypeGuard[Positions]:
        """Has the end of all that is read been looked up before?"""
        read = [at for split, at in (known or {}).items() if not self._topics.is_let_go(topic_of(split))]
        return bool(read) and all(until_of(at) is not None for at in read)

    def _began(self, survey: Survey) -> dict[SplitId, Position]:
        topics = self._topics.chosen(survey.there)
        if not topics:
            raise self._topics.nothing_matches()
        if isinstance(self._start, datetime) and is_to_come(self._start):
            raise ConfigError(
                f"start={self._start} is still to come: nobody can tell yet which record is the first after it, and "
                'those in between would be read, too. Start the job then, or use "latest".'
            )
        found: dict[SplitId, Position] = {}
        for topic in topics:
            topic_id = survey.facts(topic).topic_id
            found |= positions(topic, topic_id, survey.offsets(topic, Rule.of(self._start)))
        return found

    def _goes_on(self, survey: Survey, known: Positions) -> dict[SplitId, Position]:
        self._topics.check(known)
        by_topic: dict[str, dict[SplitId, Position]] = {topic: {} for topic in self._topics.chosen(survey.there)}
        for split, at in known.items():
            by_topic.setdefault(topic_of(split), {})[split] = at
        found: dict[SplitId, Position] = {}
        for topic, splits in by_topic.items():
            if self._topics.is_let_go(topic):
                found |= splits
                continue
            if splits and topic not in survey.there:
                raise self._topics.gone(topic)
            low, high = survey.offsets(topic, LOG_START), survey.offsets(topic, LOG_END)
            found |= continued(topic, survey.facts(topic).topic_id, splits, low, high)
        return found

    def bounds(self, positions: Positions) -> Positions | None:
        """See ``abc.Bounded``."""
        if self._end is None:
            return None
        ends = {split: until_of(at) for split, at in positions.items() if not self._topics.is_let_go(topic_of(split))}
        return {split: moved(positions[split], until) for split, until in ends.items() if until is not None}

    def not_waited_for(self, positions: Positions) -> Collection[SplitId]:
        """See ``abc.Sequenced``: partitions that are read to their end for good."""
        ends = self.bounds(positions) or {}
        return [split for split, end in ends.items() if offset_of(positions[split]) >= offset_of(end)]

    def ends(self, ctx: JobContext) -> Positions:
        """Up to the last record that a read_committed reader can see now."""
        return _told(self.ends_all(ctx, [self]))

    def ends_all(self, ctx: JobContext, asked: Sequence[KafkaSource[Any]]) -> Sequence[Answer]:
        with self._survey(ctx, [(source, None) for source in asked]) as survey:
            survey.look((topic, END) for source in asked for topic in source._topics.chosen(survey.there))
            return [_answer(partial(source._ends, survey)) for source in asked]

    def _ends(self, survey: Survey) -> Positions:
        found: dict[SplitId, Position] = {}
        for topic in self._topics.chosen(survey.there):
            if topic not in survey.there:  # nobody asks for the ends of what was not found before
                raise self._topics.gone(topic)
            found |= positions(topic, survey.facts(topic).topic_id, survey.offsets(topic, END))
        return found

    def reader(self, ctx: TaskContext, positions: Positions) -> Reader[T]:
        self._topics.check(positions)
        where = self._cluster(ctx.job)
        group = self._group or ctx.job.job
        defaults = {**_READ, **SPOKEN, **read_ahead(share_of(ctx.job))}
        config = partial(where.client, defaults, {**_READ_ALWAYS, "group.id": group})
        reject = partial(ctx.services.reject_record, ctx.operator)
        left_out = partial(ctx.services.left_out, ctx.operator)
        let_go = self._topics.is_let_go
        return KafkaReader(config, ctx.operator, self.topic, positions, self._decoding, reject, left_out, let_go)

    def audit_logs(self, ctx: JobContext, read: Collection[SplitId]) -> Sequence[tuple[str, str, Mapping[str, Any]]]:
        """For the audit: topic, bootstrap servers and librdkafka settings of each topic that was ``read``."""
        where = self._cluster(ctx)
        topics = dict.fromkeys((*self._topics.names, *sorted({topic_of(split) for split in read})))
        return [(topic, where.bootstrap, where.config) for topic in topics]

    def decode(
        self, source_name: str, raws: Sequence[RawRecord], reject: Callable[[RawRecord, Exception], None]
    ) -> Batch[T]:
        """For the audit: what the reader makes of ``raws``; rows that ``reject`` took are left out."""
        return replay(source_name, raws, self._decoding, reject)

    def raw(self, value: T, offset: int, timestamp: int) -> RawRecord:
        """For tests: the record of which the reader makes ``value``. Raises what its codec raises."""
        topic = self._topics.names[0] if self._topics.names else self._topics.text
        return unread(topic, offset, timestamp, value, self._codecs.of(topic))

    def completed(self, ctx: JobContext, epoch: EpochId, positions: Positions) -> None:
        """Show the group's progress to lag tools; the metadata names who wrote it, and the epoch."""
        note = names.offset_metadata(ctx, epoch)
        by_topic: dict[str, dict[int, int]] = {}
        for split, at in positions.items():
            if not self._topics.is_let_go(topic_of(split)):
                by_topic.setdefault(topic_of(split), {})[partition_of(split)] = offset_of(at)
        for topic, offsets in by_topic.items():
            if self._showing is None:
                self._showing = KafkaRequests(self._cluster(ctx), _SHOWN_WITHIN)
            self._showing.commit_offsets(self._group or ctx.job, topic, offsets, note)

    def lives(self, ctx: JobContext) -> Sequence[Life]:
        """By the group's offsets; those of a group that others use too count only if this package wrote them."""
        # By a request of our own: the client was seen to crash on the answer of a cluster without groups.
        group, where = self._group or ctx.job, self._cluster(ctx)
        with KafkaRequests(where) as rpc:
            listed = rpc.topic_names() if self._topics.pattern is not None else ()
            metadata = [
                each
                for topic, facts in rpc.topics(self._topics.chosen(listed)).items()
                if facts is not None  # nobody has read it; the search for partitions names all that are missing
                for each in rpc.committed(group, topic, range(facts.partitions)).values()
            ]
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
    def _survey(self, ctx: JobContext, asked: Sequence[tuple[KafkaSource[Any], Positions | None]]) -> Iterator[Survey]:
        """A look at the cluster, for these sources; what nobody could tell is asked by a new client the next time.

        The old one may not know a new partition or, after a broker's outage, the new leader epoch for minutes.
        """
        where, subscriptions = self._cluster(ctx), [source._topics for source, _ in asked]

        def wanted(listed: Sequence[str]) -> Collection[str]:
            # Also what was read and is not listed: it is asked for by name, and again, before it is said to be gone.
            known = {
                topic
                for source, at in asked
                if source._topics.pattern is not None
                for topic in map(topic_of, at or ())
                if not source._topics.is_let_go(topic)
            }
            return known.union(*(subscription.chosen(listed) for subscription in subscriptions))

        by_pattern = any(subscription.pattern is not None for subscription in subscriptions)
        survey = Survey(where, wanted, lambda: self._client(where), by_pattern=by_pattern)
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
    """Lives of ``job`` among those who committed a group's offsets."""
    terms: dict[JobIdentity | None, Term] = {}
    for by in told:
        if by.job == job:
            terms[by.identity] = max(by.term, terms.get(by.identity, by.term))
    return [Life(identity, f"consumer group {group!r}", "committed offsets", term) for identity, term in terms.items()]
