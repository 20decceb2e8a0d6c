"""The messages that are written by hand are those that kio makes of Kafka's own definitions; see ``tests/wire.py``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, get_args, get_type_hints
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader
from kio.static.primitive import Records

from kafka_eos.connectors.kafka.rpc.messages import cluster, connection, groups, logs, transactions
from kafka_eos.connectors.kafka.rpc.messages.request import Request
from kafka_eos.connectors.kafka.rpc.messages.wire_format import (
    MalformedMessage,
    MessageReader,
    int16,
    int32,
    int64,
    text,
)
from tests.wire import encoded

st.register_type_strategy(Records, st.binary(max_size=200).map(Records))
ID, TOPIC, GROUP = "job.4f.3.0.1", "übersicht", "job.4f.0.1"
REQUESTS: dict[str, tuple[Request[Any], Callable[[Any], Any], Any]] = {
    "EndTxn-4": (
        transactions.end_txn(ID, 2**40, 7, True, 4),
        lambda r: (r.transactional_id, r.producer_id, r.producer_epoch, r.committed),
        (ID, 2**40, 7, True),
    ),
    "EndTxn-5": (
        transactions.end_txn(ID, 2**40, 7, False, 5),
        lambda r: (r.transactional_id, r.producer_id, r.producer_epoch, r.committed),
        (ID, 2**40, 7, False),
    ),
    "InitProducerId": (
        transactions.init_producer_id(ID, 1_009),
        lambda r: (r.transactional_id, r.transaction_timeout.total_seconds(), r.producer_id, r.producer_epoch),
        (ID, 1.009, -1, -1),
    ),
    "DescribeTransactions": (
        transactions.describe_transactions([ID, "x" * 200]),
        lambda r: r.transactional_ids,
        (ID, "x" * 200),
    ),
    "ListTransactions": (
        transactions.list_transactions("^(?:a.*)$", ["Ongoing"]),
        lambda r: (r.state_filters, r.producer_id_filters, getattr(r, "transactional_id_pattern", "^(?:a.*)$")),
        (("Ongoing",), (), "^(?:a.*)$"),
    ),
    "OffsetFetch": (
        groups.offset_fetch(GROUP, TOPIC, [0, 300]),
        lambda r: [(g.group_id, [(t.name, t.partition_indexes) for t in g.topics], r.require_stable) for g in r.groups],
        [(GROUP, [(TOPIC, (0, 300))], False)],
    ),
    "OffsetCommit": (
        groups.offset_commit(GROUP, TOPIC, {3: 2**40}, "uuid"),
        lambda r: (
            (r.group_id, r.generation_id_or_member_epoch, r.member_id, r.group_instance_id),
            [
                (t.name, p.partition_index, p.committed_offset, p.committed_leader_epoch, p.committed_metadata)
                for t in r.topics
                for p in t.partitions
            ],
        ),
        ((GROUP, -1, "", None), [(TOPIC, 3, 2**40, -1, "uuid")]),
    ),
    "FindCoordinator": (
        cluster.find_coordinator(cluster.TRANSACTION, ID),
        lambda r: (r.key_type, r.coordinator_keys),
        (1, (ID,)),
    ),
    "Metadata": (
        cluster.metadata([TOPIC]),
        lambda r: (
            [(t.topic_id, t.name) for t in r.topics],
            r.allow_auto_topic_creation,
            r.include_topic_authorized_operations,
        ),
        ([(None, TOPIC)], False, True),
    ),
    "DescribeConfigs": (
        cluster.describe_configs(cluster.BROKER, "1", ["log.dirs"]),
        lambda r: (
            [(c.resource_type, c.resource_name, c.configuration_keys) for c in r.resources],
            r.include_synonyms,
            r.include_documentation,
        ),
        ([(4, "1", ("log.dirs",))], False, False),
    ),
    "DescribeQuorum": (
        cluster.describe_quorum(),
        lambda r: [(t.topic_name, [p.partition_index for p in t.partitions]) for t in r.topics],
        [("__cluster_metadata", [0])],
    ),
    "ApiVersions": (
        connection.api_versions(),
        lambda r: (r.client_software_name, r.client_software_version),
        ("kafka-eos", "1"),
    ),
    "Fetch": (
        logs.fetch(TOPIC, 3, 2**40, 1_000_000),
        lambda r: (
            (r.replica_id, r.min_bytes, r.max_bytes, r.isolation_level, r.session_id, r.session_epoch, r.rack_id),
            [
                (
                    t.topic,
                    p.partition,
                    p.fetch_offset,
                    p.current_leader_epoch,
                    p.log_start_offset,
                    p.partition_max_bytes,
                )
                for t in r.topics
                for p in t.partitions
            ],
        ),
        ((-1, 1, 1_000_000, 0, 0, -1, ""), [(TOPIC, 3, 2**40, -1, -1, 1_000_000)]),
    ),
    "SaslHandshake": (connection.sasl_handshake("PLAIN"), lambda r: r.mechanism, "PLAIN"),
    "SaslAuthenticate": (connection.sasl_authenticate(b"\0a\0b"), lambda r: r.auth_bytes, b"\0a\0b"),
}
VERSIONS = [
    pytest.param(name, version, id=f"{name}-v{version}")
    for name, (request, *_) in REQUESTS.items()
    for version in range(request.lowest, request.highest + 1)
]


@pytest.mark.parametrize(("name", "version"), VERSIONS)
def test_a_request_says_what_it_should(name: str, version: int) -> None:
    request, said, expected = REQUESTS[name]
    body = request.body(version)
    schema = load_request_schema(request.key, version)

    parsed, size = entity_reader(schema)(body, 0)

    assert schema.__flexible__ == request.flexible
    assert size == len(body)
    assert encoded(parsed) == body
    assert said(parsed) == expected


def _ms(delta: Any) -> int:
    return round(delta.total_seconds() * 1000)


def _metadata(answer: Any) -> cluster.MetadataResponse:
    return cluster.MetadataResponse(
        {broker.node_id: (broker.host, broker.port) for broker in answer.brokers},
        tuple(
            cluster.MetadataTopic(
                topic.error_code,
                topic.name,
                str(topic.topic_id or UUID(int=0)),
                tuple(
                    cluster.MetadataPartition(part.partition_index, part.leader_id, len(part.replica_nodes))
                    for part in topic.partitions
                ),
                topic.topic_authorized_operations,
                topic.is_internal,
            )
            for topic in answer.topics
        ),
        answer.cluster_id or "",
    )


def _offsets(answer: Any) -> groups.OffsetFetchResponse:
    (group,) = answer.groups
    parts = [part for topic in group.topics for part in topic.partitions]
    return groups.OffsetFetchResponse(
        group.error_code,
        tuple(
            groups.OffsetFetchPartition(
                part.partition_index, part.committed_offset, part.metadata or "", part.error_code
            )
            for part in parts
        ),
    )


def _configs(answer: Any) -> cluster.DescribeConfigsResponse:
    (result,) = answer.results
    return cluster.DescribeConfigsResponse(
        result.error_code, {setting.name: setting.value for setting in result.configs}
    )


def _quorum(answer: Any) -> cluster.DescribeQuorumResponse:
    parts = [part for topic in answer.topics for part in topic.partitions]
    if answer.error_code or not parts:
        return cluster.DescribeQuorumResponse(answer.error_code, -1)
    caught_up = [v.last_caught_up_timestamp for v in parts[0].current_voters if v.replica_id == parts[0].leader_id]
    return cluster.DescribeQuorumResponse(parts[0].error_code, max(caught_up, default=-1))


def _coordinator(answer: Any) -> cluster.FindCoordinatorResponse:
    (found,) = answer.coordinators
    return cluster.FindCoordinatorResponse(found.node_id, found.host, found.port, found.error_code)


def _fetched(answer: Any) -> logs.FetchResponse:
    parts = [part for topic in answer.responses for part in topic.partitions]
    if answer.error_code or not parts:
        return logs.FetchResponse(answer.error_code, -1, b"")
    return logs.FetchResponse(parts[0].error_code, parts[0].high_watermark, parts[0].records or b"")


def _abilities(answer: Any) -> connection.ApiVersionsResponse:
    if answer.error_code:
        return connection.ApiVersionsResponse(answer.error_code, {}, {})
    return connection.ApiVersionsResponse(
        0,
        {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys},
        {feature.name: feature.max_version_level for feature in answer.finalized_features},
    )


SEEN: dict[str, Callable[[Any], Any]] = {
    "EndTxn-4": lambda a: a.error_code,
    "EndTxn-5": lambda a: a.error_code,
    "InitProducerId": lambda a: a.error_code,
    "DescribeTransactions": lambda a: tuple(
        transactions.TransactionState(
            one.error_code,
            one.transactional_id,
            one.transaction_state,
            _ms(one.transaction_timeout),
            round(one.transaction_start_time.timestamp() * 1000),
            one.producer_id,
            one.producer_epoch,
        )
        for one in a.transaction_states
    ),
    "ListTransactions": lambda a: transactions.ListTransactionsResponse(
        a.error_code, tuple(one.transactional_id for one in a.transaction_states)
    ),
    "OffsetFetch": _offsets,
    "OffsetCommit": lambda a: tuple(part.error_code for topic in a.topics for part in topic.partitions),
    "FindCoordinator": _coordinator,
    "Metadata": _metadata,
    "DescribeConfigs": _configs,
    "DescribeQuorum": _quorum,
    "ApiVersions": _abilities,
    "Fetch": _fetched,
    "SaslHandshake": lambda a: connection.SaslHandshakeResponse(a.error_code, a.mechanisms),
    "SaslAuthenticate": lambda a: connection.SaslAuthenticateResponse(
        a.error_code, a.error_message, a.auth_bytes, _ms(a.session_lifetime)
    ),
}
_OF_ONE = {"OffsetFetch": "groups", "FindCoordinator": "coordinators", "DescribeConfigs": "results"}
"""Answers to a question about one, by the field that holds it."""


def _answers(name: str, version: int) -> st.SearchStrategy[Any]:
    schema: Any = load_response_schema(REQUESTS[name][0].key, version)
    field = _OF_ONE.get(name)
    if field is None:
        return st.from_type(schema)
    one, _ = get_args(get_type_hints(schema)[field])
    return st.builds(
        lambda answer, found: replace(answer, **{field: (found,)}), st.from_type(schema), st.from_type(one)
    )


@pytest.mark.parametrize(("name", "version"), VERSIONS)
@settings(max_examples=5, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_an_answer_is_read_as_it_was_meant_or_not_at_all(name: str, version: int, data: st.DataObject) -> None:
    request, seen = REQUESTS[name][0], SEEN[name]
    answer = data.draw(_answers(name, version))
    whole = encoded(answer)
    found = MessageReader(whole)

    read = request.answer(found, version)

    found.end()
    assert read == seen(answer)
    if name != "ApiVersions":  # an error there says that the rest has another layout
        with pytest.raises(MalformedMessage):
            request.answer(MessageReader(whole[: data.draw(st.integers(0, len(whole) - 1))]), version)


def test_an_error_that_nobody_has_heard_of_is_read() -> None:
    body = int32(0) + int16(999) + int64(5) + int16(6) + b"\0"

    assert transactions.end_txn(ID, 5, 6, True, 5).answer(MessageReader(body), 5) == 999


def test_a_transaction_that_is_not_open_began_at_no_time() -> None:
    state = int16(0) + text(ID) + text("Empty") + int32(1_010) + int64(-1) + int64(7) + int16(3) + b"\1\0"
    request = transactions.describe_transactions([ID])

    assert request.answer(MessageReader(int32(0) + b"\2" + state + b"\0"), 0) == (
        transactions.TransactionState(0, ID, "Empty", 1_010, -1, 7, 3),
    )


@pytest.mark.parametrize("raw", [b"\xff\xff\xff\xff\xff\x01", b"\xff\xff\xff\xff\x0f", b"\x03\xff\xfe"])
def test_lengths_and_texts_that_mean_nothing_are_not_believed(raw: bytes) -> None:
    with pytest.raises(MalformedMessage):
        MessageReader(raw).text()
    with pytest.raises(MalformedMessage):
        MessageReader(raw).array(MessageReader.text)
