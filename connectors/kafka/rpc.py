"""Requests that librdkafka cannot send: ending, describing and fencing other processes' transactions.

A synchronous client over kafka-python's protocol and network layers; with ``security`` the only module that imports it.

Rule: every call ends within its patience. A coordinator that moves, loads or restarts is asked again until
then; what is still unknown is Retryable, never a guess.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Self

from kafka import errors
from kafka.net.manager import KafkaConnectionManager
from kafka.net.selector import NetworkSelector
from kafka.protocol.admin.configs import DescribeConfigsRequest
from kafka.protocol.admin.transactions import DescribeTransactionsRequest, ListTransactionsRequest
from kafka.protocol.consumer.group import OffsetCommitRequest, OffsetFetchRequest
from kafka.protocol.metadata import ApiVersionsRequest, FindCoordinatorRequest, MetadataRequest
from kafka.protocol.producer.transaction import EndTxnRequest, InitProducerIdRequest

from kafka_eos.connectors.kafka.client import refusal
from kafka_eos.connectors.kafka.security import connection
from kafka_eos.connectors.kafka.settings import Cluster
from kafka_eos.connectors.kafka.transactions import Description
from kafka_eos.errors import ConfigError, Retryable, UserError

_GROUP, _TRANSACTION = 0, 1
_BROKER_RESOURCE, _TOPIC_RESOURCE = 4, 2
_TOPIC_UNKNOWN, _LEADER_UNKNOWN = 3, 5
_REQUEST_MS = 5_000
_NEW_TOPIC_SECONDS = 2.0
_ONE_OF_MANY_SECONDS = 2.0
"""For a request that any broker can answer as well."""
_ASK_AGAIN = frozenset({5, 6, 7, 13, 14, 15, 16, 41, 51, 84, 88})
"""Leader or coordinator unavailable, loading or moved; timeouts; CONCURRENT_TRANSACTIONS; unstable offsets."""
_FORBIDDEN = frozenset({29, 30, 31, 53, 58, 33, 34})
_NAMES: Final = {
    0: "NONE",
    3: "UNKNOWN_TOPIC_OR_PARTITION",
    47: "INVALID_PRODUCER_EPOCH",
    48: "INVALID_TXN_STATE",
    49: "INVALID_PRODUCER_ID_MAPPING",
    50: "INVALID_TRANSACTION_TIMEOUT",
    51: "CONCURRENT_TRANSACTIONS",
    53: "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    59: "UNKNOWN_PRODUCER_ID",
    90: "PRODUCER_FENCED",
    105: "TRANSACTIONAL_ID_NOT_FOUND",
}


@dataclass(frozen=True, slots=True)
class TopicFacts:
    """Metadata of one topic. ``leaderless`` are partitions without a leader now."""

    topic_id: str
    partitions: int
    replicas: int
    leaderless: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ended:
    """Answer to EndTxn: the error's protocol name, and with v5 the producer's next identity (else -1)."""

    error: str
    producer_id: int
    producer_epoch: int


class Coordinators:
    """The coordinators of one cluster. Thread-safe; connects on the first call and again after a restart.

    ``patience`` is how many seconds a call may take in all before it raises Retryable.
    """

    def __init__(self, cluster: Cluster, patience: float = 20.0) -> None:
        self._cluster, self._patience = cluster, patience
        self._net: Any = None
        self._manager: Any = None
        self._connecting = threading.Lock()
        self._known: dict[tuple[int, str], int] = {}
        self._end_version: int | None = None
        self._asked_why = False
        """Why no connection came up is asked once: it takes seconds, and the answer does not change."""

    @property
    def bootstrap(self) -> str:
        return self._cluster.bootstrap

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        manager, net, self._manager, self._net = self._manager, self._net, None, None
        if manager is not None:
            net.call_soon_threadsafe(manager.close)
            net.stop(timeout_ms=2_000)

    # ------------------------------------------------------------ transactions

    def end(self, transactional_id: str, producer_id: int, epoch: int, *, commit: bool, version: int) -> Ended:
        """Send EndTxn once the coordinator is found. Returns refusals; raises Retryable for an unknown fate.

        A CONCURRENT_TRANSACTIONS answer is asked again: the outcome is decided, its markers are being written.
        """

        def request() -> Any:
            asked = EndTxnRequest(
                transactional_id=transactional_id, producer_id=producer_id, producer_epoch=epoch, committed=commit
            )
            asked.API_VERSION = version
            return asked

        answer = self._ask(request, _TRANSACTION, transactional_id, lambda a: a.error_code, f"EndTxn v{version}")
        fresh = (answer.producer_id, answer.producer_epoch) if version >= 5 else (-1, -1)
        return Ended(_name(answer.error_code), *fresh)

    def fence(self, transactional_id: str, timeout_ms: int) -> str:
        """InitProducerId: abort what is open under the id, and refuse all its present producers for ever.

        Returns the protocol name of the answer. ``timeout_ms`` is recorded as the id's transaction timeout.
        """

        def request() -> Any:
            return InitProducerIdRequest(
                transactional_id=transactional_id,
                transaction_timeout_ms=timeout_ms,
                producer_id=-1,
                producer_epoch=-1,
                max_version=5,
            )

        what = "InitProducerId"
        return _name(self._ask(request, _TRANSACTION, transactional_id, lambda a: a.error_code, what).error_code)

    def describe(self, transactional_id: str) -> Description | None:
        """What the coordinator knows; None if it does not know the id."""
        answer = self._ask(
            lambda: DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            _TRANSACTION,
            transactional_id,
            lambda a: a.transaction_states[0].error_code,
            "DescribeTransactions",
        )
        return _description(answer.transaction_states[0])

    def described(self, pattern: str, states: Sequence[str] = ()) -> dict[str, Description]:
        """What the coordinators know of every id on the cluster that ``pattern`` matches in full.

        ``states`` narrows it to ids that are in one of them; the broker filters.
        """
        wanted, found = re.compile(pattern), {}
        for node in self._nodes():
            answer = self._ask(
                self._list_request(pattern, states), None, node, lambda a: a.error_code, "ListTransactions"
            )
            _expect(answer.error_code, {0}, "ListTransactions")
            ids = [t.transactional_id for t in answer.transaction_states if wanted.fullmatch(t.transactional_id)]
            found.update(self._described_by(node, ids))
        return found

    def _described_by(self, node: int, ids: Sequence[str]) -> dict[str, Description]:
        """One request however many ids: hundreds of restarts leave as many behind."""
        if not ids:
            return {}
        answer = self._ask(
            lambda: DescribeTransactionsRequest(transactional_ids=list(ids)),
            None,
            node,
            lambda a: max((s.error_code for s in a.transaction_states if s.error_code in _ASK_AGAIN), default=0),
            "DescribeTransactions",
        )
        seen = {state.transactional_id: _description(state) for state in answer.transaction_states}
        return {name: description for name, description in seen.items() if description is not None}

    def _list_request(self, pattern: str, states: Sequence[str]) -> Callable[[], Any]:
        # Since 4.1 (KIP-1152) the broker filters; before, all ids travel and the caller filters.
        narrow = self._version(ListTransactionsRequest) >= 2
        extra: dict[str, Any] = {"transactional_id_pattern": f"^(?:{pattern})$", "min_version": 2} if narrow else {}
        return lambda: ListTransactionsRequest(state_filters=list(states), producer_id_filters=[], **extra)

    # ------------------------------------------------------------ facts

    def marker(self, group: str, topic: str, partition: int) -> str | None:
        """Metadata of the group's last *committed* offset there; None if there is none."""
        return self.committed(group, topic, [partition]).get(partition)

    def committed(self, group: str, topic: str, partitions: Sequence[int]) -> dict[int, str]:
        """Metadata of the group's last committed offset in each of these partitions that has one."""

        def request() -> Any:
            asked = OffsetFetchRequest
            topics = asked.OffsetFetchRequestGroup.OffsetFetchRequestTopics
            if self._version(OffsetFetchRequest) >= 8:
                one = asked.OffsetFetchRequestGroup(
                    group_id=group, topics=[topics(name=topic, partition_indexes=list(partitions))]
                )
                return asked(groups=[one], require_stable=False, min_version=8, max_version=9)
            old = asked.OffsetFetchRequestTopic(name=topic, partition_indexes=list(partitions))
            return asked(group_id=group, topics=[old], max_version=7)

        answer = self._ask(request, _GROUP, group, _offset_error, "OffsetFetch")
        code = _offset_error(answer)
        if code:
            _expect(code, {3, 69, 100}, f"OffsetFetch of group {group}")
            return {}
        found = [part for part in _offsets_of(answer) if part.committed_offset >= 0]
        # confluent-kafka sends the terminating NUL of its C string along with an offset's metadata.
        return {part.partition_index: str(part.metadata).rstrip("\0") for part in found}

    def commit_offsets(self, group: str, topic: str, offsets: Mapping[int, int], metadata: str) -> None:
        """Store offsets of a group by partition, as a consumer without members does; raises UserError if refused.

        librdkafka's admin client goes on with a coordinator that has moved: that one refuses each partition by itself.
        """
        asked = OffsetCommitRequest.OffsetCommitRequestTopic
        parts = [
            asked.OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=at, committed_metadata=metadata
            )
            for partition, at in offsets.items()
        ]

        def request() -> Any:
            return OffsetCommitRequest(group_id=group, topics=[asked(name=topic, partitions=parts)], max_version=9)

        answer = self._ask(request, _GROUP, group, lambda a: _part_error(a.topics), "OffsetCommit")
        _expect(_part_error(answer.topics), {0}, f"OffsetCommit of group {group}")

    def transaction_version(self) -> int:
        """The finalized feature level ``transaction.version``; 0 on brokers without features."""
        if self._version(ApiVersionsRequest) < 3:
            return 0

        def request() -> Any:
            # The broker refuses a request without a name, in a form that cannot be decoded.
            return ApiVersionsRequest(client_software_name="kafka-eos", client_software_version="1", min_version=3)

        answer = self._ask(request, None, None, lambda a: a.error_code, "ApiVersions")
        levels = {f.name: f.max_version_level for f in (answer.finalized_features or [])}
        return int(levels.get("transaction.version", 0))

    def end_txn_version(self) -> int:
        """5 where the broker bumps the epoch at the end of a transaction (it then fences zombies), else 4."""
        if self._end_version is None:
            self._end_version = 5 if self.transaction_version() >= 2 and self._version(EndTxnRequest) >= 5 else 4
        return self._end_version

    def broker_config(self, name: str) -> str | None:
        """One setting of the first broker that answers; None if the user may not read it."""
        deadline = time.monotonic() + self._patience
        while True:
            for node in self._nodes():  # some may be dead, and not known to be
                try:
                    return self._config(_BROKER_RESOURCE, str(node), name, node, _ONE_OF_MANY_SECONDS)
                except Retryable:
                    if time.monotonic() > deadline:
                        raise

    def topic_config(self, topic: str, name: str) -> str | None:
        """One setting of a topic; None if the user may not read it, or the topic does not exist."""
        if self.topic(topic) is None:
            return None
        return self._config(_TOPIC_RESOURCE, topic, name, None, self._patience)

    def _config(self, kind: int, resource: str, name: str, node: int | None, seconds: float) -> str | None:
        def request() -> Any:
            one = DescribeConfigsRequest.DescribeConfigsResource(
                resource_type=kind, resource_name=resource, configuration_keys=[name]
            )
            return DescribeConfigsRequest(resources=[one])

        def code(answer: Any) -> int:
            found = int(answer.results[0].error_code)
            return _LEADER_UNKNOWN if found == _TOPIC_UNKNOWN else found  # a broker that has not heard of it yet

        answer = self._ask(request, None, node, code, "DescribeConfigs", forbidden=False, seconds=seconds)
        result = answer.results[0]
        if result.error_code in _FORBIDDEN:
            return None
        _expect(result.error_code, {0}, f"DescribeConfigs of {resource}")
        return next((c.value for c in result.configs if c.name == name), None)

    def topic(self, name: str) -> TopicFacts | None:
        """Metadata of a topic, without creating it; None if it does not exist. See ``topics``."""
        return self.topics([name])[name]

    def topics(self, names: Collection[str]) -> dict[str, TopicFacts | None]:
        """Metadata of these topics from one request, without creating them; None for one that does not exist.

        A topic that was created a moment ago is unknown to the broker for some milliseconds: asked again for 2 s.
        """
        deadline = time.monotonic() + _NEW_TOPIC_SECONDS
        found = self._topics(names)
        while None in found.values() and time.monotonic() < deadline:
            time.sleep(0.1)
            found |= self._topics([name for name, facts in found.items() if facts is None])
        return found

    def _topics(self, names: Collection[str]) -> dict[str, TopicFacts | None]:

        def request() -> Any:
            asked = [MetadataRequest.MetadataRequestTopic(name=name) for name in sorted(names)]
            return MetadataRequest(topics=asked, allow_auto_topic_creation=False)

        answer = self._ask(request, None, None, _worst, "Metadata")
        return {str(topic.name): _topic_facts(topic) for topic in answer.topics}

    def _nodes(self) -> list[int]:
        answer = self._ask(lambda: MetadataRequest(topics=[]), None, None, lambda a: 0, "Metadata")
        return sorted(broker.node_id for broker in answer.brokers)

    # ------------------------------------------------------------ asking

    def _ask(
        self,
        request: Callable[[], Any],
        kind: int | None,
        place: str | int | None,
        code: Callable[[Any], int],
        what: str,
        *,
        forbidden: bool = True,
        seconds: float | None = None,
    ) -> Any:
        """Send until there is an answer whose ``code`` is final. ``place`` is a coordinator's key or a node."""
        patience = self._patience if seconds is None else min(seconds, self._patience)
        deadline = time.monotonic() + patience
        pause, last = 0.005, "no answer"
        while True:
            try:
                with _Mapped(what):
                    answer = self._send(request(), kind, place, deadline)
                if code(answer) not in _ASK_AGAIN:
                    break
                last = _name(code(answer))
            except Retryable as error:
                last = str(error)
                self._expect_welcome(deadline)
            if kind is not None and last != "CONCURRENT_TRANSACTIONS":
                self._known.pop((kind, str(place)), None)
            if time.monotonic() + pause > deadline:
                raise Retryable(f"{what} for {place!r} on {self._cluster.bootstrap}: {last} for {patience:g} s")
            time.sleep(pause)
            pause = min(2 * pause, 0.25)
        if forbidden and code(answer) in _FORBIDDEN:
            raise ConfigError(f"{what} for {place!r} is not allowed for this user: {_name(code(answer))}")
        return answer

    def _expect_welcome(self, deadline: float) -> None:
        """ConfigError if no connection has come up because of TLS or the login: kafka-python says "timeout" then."""
        if self._asked_why or (self._manager is not None and self._manager.bootstrapped):
            return
        self._asked_why = True
        left = max(0.1, min(_REQUEST_MS / 1000, deadline - time.monotonic()))
        if reason := refusal(self._cluster.client({}, {}), left):
            raise ConfigError(f"Kafka at {self._cluster.bootstrap} refuses the connection: {reason}")

    def _send(self, request: Any, kind: int | None, place: str | int | None, deadline: float) -> Any:
        if kind is not None:
            place = self._coordinator(kind, str(place), deadline)
        return self._raw(request, place if isinstance(place, int) else None, deadline)

    def _coordinator(self, kind: int, key: str, deadline: float) -> int:
        node = self._known.get((kind, key))
        if node is None:
            if self._version(FindCoordinatorRequest) >= 4:
                asked = FindCoordinatorRequest(key_type=kind, coordinator_keys=[key], min_version=4)
                found = self._raw(asked, None, deadline).coordinators[0]
            else:
                found = self._raw(FindCoordinatorRequest(key=key, key_type=kind, max_version=3), None, deadline)
            if found.error_code in _FORBIDDEN:
                raise ConfigError(f"FindCoordinator of {key!r} is not allowed: {_name(found.error_code)}")
            if found.error_code:
                raise Retryable(f"FindCoordinator of {key!r}: {_name(found.error_code)}")
            node = self._known[kind, key] = int(found.node_id)
        return node

    def _raw(self, request: Any, node: int | None, deadline: float) -> Any:
        manager = self._connected(deadline)
        left = max(1, min(_REQUEST_MS, int((deadline - time.monotonic()) * 1000)))

        async def exchange() -> Any:
            if node is not None and manager.cluster.broker_metadata(node) is None:
                await manager.cluster.refresh_metadata()
            return await manager.wait_for(manager.send(request, node_id=node, request_timeout_ms=left), left + 500)

        return manager.run(exchange)

    def _version(self, request: Any) -> int:
        manager = self._connected(time.monotonic() + self._patience)
        return int(manager.broker_version_data.api_version(request))

    def _connected(self, deadline: float) -> Any:
        with self._connecting:
            if self._manager is None:
                net = NetworkSelector(client_id="kafka-eos-coordinators")
                net.start()
                self._net, self._manager = net, KafkaConnectionManager(net, **connection(self._cluster, _REQUEST_MS))
            manager = self._manager
            if not manager.bootstrapped:
                left = max(1, min(_REQUEST_MS, int((deadline - time.monotonic()) * 1000)))
                manager.bootstrap(timeout_ms=left)
            return manager


# ---------------------------------------------------------------- errors, one place


class _Mapped:
    """Maps kafka-python's errors: what may pass by itself is Retryable, what a person must change is ConfigError."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not isinstance(error, errors.KafkaError):
            return
        if isinstance(error, (errors.SaslAuthenticationFailedError, errors.AuthorizationError)):
            raise ConfigError(f"{self._what}: the broker refused the user: {error}") from error
        if isinstance(error, (errors.IncompatibleBrokerVersion, errors.UnsupportedVersionError)):
            raise ConfigError(f"{self._what}: the broker is too old for it: {error}") from error
        if isinstance(error, errors.KafkaConfigurationError):
            raise ConfigError(f"{self._what}: {error}") from error
        raise Retryable(f"{self._what}: {error}") from error


def _name(code: int) -> str:
    if code in _NAMES:
        return _NAMES[code]
    kind = errors.for_code(code)
    return str(getattr(kind, "message", None) or kind.__name__)


def _expect(code: int, allowed: set[int], what: str) -> None:
    if code not in allowed:
        raise UserError(f"{what} was refused: {_name(code)}")


def _description(seen: Any) -> Description | None:
    if seen.error_code:
        _expect(seen.error_code, {105}, f"DescribeTransactions of {seen.transactional_id}")
        return None
    return Description(
        seen.transaction_state,
        seen.producer_id,
        seen.producer_epoch,
        seen.transaction_timeout_ms,
        seen.transaction_start_time_ms,
    )


def _worst(answer: Any) -> int:
    """What is to be done about topics. One that has no leader yet still has metadata, one that is unknown has none."""
    codes = {topic.error_code for topic in answer.topics} - {0, _TOPIC_UNKNOWN, _LEADER_UNKNOWN}
    return max(codes, key=lambda code: (code in _ASK_AGAIN, code in _FORBIDDEN), default=0)


def _topic_facts(found: Any) -> TopicFacts | None:
    if found.error_code == _TOPIC_UNKNOWN:
        return None
    _expect(found.error_code, {0, _LEADER_UNKNOWN}, f"Metadata of topic {found.name}")
    parts = found.partitions
    return TopicFacts(
        str(found.topic_id),
        len(parts),
        min((len(p.replica_nodes) for p in parts), default=0),
        tuple(sorted(p.partition_index for p in parts if p.leader_id < 0)),
    )


def _offset_error(answer: Any) -> int:
    group = answer.groups[0] if answer.API_VERSION >= 8 else answer
    return int(group.error_code or _part_error(group.topics))


def _part_error(topics: Iterable[Any]) -> int:
    """The first error of any partition; 0 if there is none."""
    return next((part.error_code for topic in topics for part in topic.partitions if part.error_code), 0)


def _offsets_of(answer: Any) -> list[Any]:
    group = answer.groups[0] if answer.API_VERSION >= 8 else answer
    return [part for topic in group.topics for part in topic.partitions]


logging.getLogger("kafka").setLevel(logging.CRITICAL)
"""Its connection errors are ours to report: they come back as Retryable with the reason."""

__all__ = ["Coordinators", "Ended", "TopicFacts"]
