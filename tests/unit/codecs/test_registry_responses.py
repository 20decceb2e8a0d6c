"""What a registry's answers mean, and those of what stands between: whose fault they are, and what is kept of them."""

from __future__ import annotations

import base64
import gzip
import json
import socket
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from pydantic import BaseModel

from kafka_eos.codecs import Registry, avro
from kafka_eos.codecs.registry import response_bounds, schema_references
from kafka_eos.codecs.registry import unknown_schemas as unknown
from kafka_eos.codecs.registry.registry_client import Reference, RegisteredSchema, SubjectVersion
from kafka_eos.codecs.registry.schema_references import fetch_references
from kafka_eos.core.errors import ConfigError, RegistryUnavailable, Retryable
from kafka_eos.core.fault_attribution import ErrorRules, Fault
from tests.avro_witness import record
from tests.scripted_http_server import HALF, RESET, Answer, Answering, Request, Sent, dripping


class Item(BaseModel):
    quantity: int


SAID = b'{"error_code": 50003, "message": "no leader"}'
UNKNOWN = (404, b'{"error_code": 40403, "message": "Schema not found"}')
LINE = json.dumps({"schema": json.dumps(record("Line", quantity="int"))}).encode()
THREE = b"\0\0\0\0\7\x06"
"""An item of three, written with schema 7."""


def items(url: str, **options: Any) -> Any:
    config = {"max.retries": 0, **options.pop("config", {})}
    return avro(Item, registry=Registry(url, config=config), **options).for_topic("orders", "value")


@pytest.fixture
def registry() -> Registry:
    """One in memory, which only this test has."""
    return Registry(f"mock://{uuid4()}")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time of what waits for a schema, in seconds. Its sleeps put it forward."""
    now = [100.0]
    passing = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda seconds: now.__setitem__(0, now[0] + seconds))
    # Not those of the process: its other threads have sleeps of their own.
    monkeypatch.setattr(unknown, "time", passing)
    return now


@pytest.mark.parametrize(
    ("answer", "fault", "said"),
    [
        ((500, SAID), Fault.ENVIRONMENT, "no leader"),
        ((502, b"<html>"), Fault.ENVIRONMENT, "responded to schema 7"),
        ((408, b""), Fault.ENVIRONMENT, "responded to schema 7"),
        ((429, SAID), Fault.ENVIRONMENT, "responded to schema 7"),
        (RESET, Fault.ENVIRONMENT, "does not respond to schema 7"),
        (HALF, Fault.ENVIRONMENT, "does not respond to schema 7"),
        ((200, b"<html>a login</html>"), Fault.ENVIRONMENT, "is not a schema registry, perhaps a proxy"),
        ((200, b""), Fault.ENVIRONMENT, "is not a schema registry, perhaps a proxy"),
        ((204, b""), Fault.ENVIRONMENT, "is not a schema registry, perhaps a proxy"),
        ((200, b"{}"), Fault.ENVIRONMENT, "it contains no schema"),
        ((200, b'{"status": "starting"}'), Fault.ENVIRONMENT, "it contains no schema"),
        ((200, b'{"schema": null}'), Fault.ENVIRONMENT, "it contains no schema"),
        ((200, b'{"schema": "null", "schemaType": 5}'), Fault.ENVIRONMENT, "it contains no schema"),
        ((200, b'{"schema": "null", "references": [{}]}'), Fault.ENVIRONMENT, "it contains a reference without a name"),
        ((200, b'"\xff"'), Fault.ENVIRONMENT, "is not a schema registry"),
        ((200, b"[" * 200_000), Fault.ENVIRONMENT, "is not a schema registry"),
        (UNKNOWN, Fault.RECORD, "has no schema 7"),
        ((404, b'{"error_code": 40401, "message": "Subject not found"}'), Fault.RECORD, "has no schema 7"),
        (
            (400, b'{"error_code": 0, "message": "Failed to discover type"}'),
            Fault.RECORD,
            "cannot return schema 7: Failed",
        ),
        ((200, b'{"schema": "{"}'), Fault.RECORD, "schema 7 of http"),
        ((400, b"<html>bad request</html>"), Fault.ENVIRONMENT, "responded to schema 7"),
        ((400, b'{"error_code": 400, "message": "bad gateway"}'), Fault.ENVIRONMENT, "responded to schema 7"),
        (
            (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}'),
            Fault.ENVIRONMENT,
            "Check the path of the address",
        ),
        ((404, b"<html>no such page</html>"), Fault.ENVIRONMENT, "Check the path of the address"),
        ((401, b'{"error_code": 401, "message": "Unauthorized"}'), Fault.ENVIRONMENT, "basic.auth.user.info"),
        ((403, b"<html>"), Fault.ENVIRONMENT, "basic.auth.user.info"),
        (
            Sent(307, b"", {"Location": "https://elsewhere/"}),
            Fault.ENVIRONMENT,
            "to another address, which is not followed",
        ),
        ((422, SAID), Fault.ENVIRONMENT, "no leader"),
    ],
)
def test_whose_fault_an_answer_is(answer: Answer, fault: Fault, said: str, clock: list[float]) -> None:
    with Answering(lambda request: answer) as server, pytest.raises(Exception, match=said) as raised:
        items(server.url).decode(THREE)

    assert ErrorRules().classify(raised.value) is fault


@pytest.mark.parametrize(
    "refusal",
    [
        (403, b'{"error_code": 40301, "message": "User ann is denied operation Read on Subject: payroll-value"}'),
        (404, b"<html>no such page</html>"),
        (422, SAID),
        Sent(307, b"", {"Location": "https://elsewhere/"}),
    ],
)
@pytest.mark.parametrize("referred", [False, True])
def test_a_refusal_that_concerns_one_schema_is_the_records_fault(
    refusal: Answer, referred: bool, clock: list[float]
) -> None:
    """A producer may state any id: that of a schema which the job may not read, in place of one of its own."""
    whole = json.dumps({**json.loads(LINE), "references": [{"name": "n", "subject": "payroll-value", "version": 1}]})

    def answer(request: Request) -> Answer:
        if referred and "/ids/7" in request.path:
            return 200, whole.encode()
        return refusal if "/ids/7" in request.path or "/payroll-value/" in request.path else UNKNOWN

    with Answering(answer) as server:
        codec = items(server.url)
        with pytest.raises(ValueError, match="the schema registry .* responded to ") as raised:
            codec.decode(THREE)
        asked = len(server.seen)
        with pytest.raises(ValueError, match="the schema registry .* responded to "):
            codec.decode(THREE)

        assert len(server.seen) == asked
    assert ErrorRules().classify(raised.value) is Fault.RECORD


def test_references_that_take_too_long_are_no_records_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schema_references, "_MOST_SECONDS", 0.0)
    whole = json.dumps({**json.loads(LINE), "references": [{"name": "n", "subject": "s", "version": 1}]}).encode()
    with (
        Answering(lambda request: (200, whole)) as server,
        pytest.raises(RegistryUnavailable, match="has not returned the schemas that a schema refers to within 0 s"),
    ):
        items(server.url).decode(THREE)


def test_a_lookup_that_takes_long_is_not_retried(clock: list[float]) -> None:
    """With its retries it would take longer than a worker may be without progress."""

    def slow(request: Request) -> Answer:
        clock[0] += 6
        return UNKNOWN

    with Answering(slow) as server:
        with pytest.raises(ValueError, match="has no schema 7"):
            items(server.url).decode(THREE)
        assert len(server.seen) == 1


NO_PAGE = (404, b'{"error_code": 404, "message": "HTTP 404 Not Found"}')
"""Of a registry for a path that it does not have, and for a number that is none of Java's."""


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
def test_a_response_that_is_far_too_large_takes_no_memory(encoding: str) -> None:
    """As gzip a hundred megabytes are a hundred kilobytes, and are not inflated; else no more than a few are read."""
    body = bytes(100 << 20) if encoding == "identity" else gzip.compress(bytes(100 << 20), 9)
    with Answering(lambda request: Sent(200, body, {"Content-Encoding": encoding})) as server:
        codec = items(server.url)
        tracemalloc.start()
        try:
            with pytest.raises(RegistryUnavailable):
                codec.decode(THREE)
            taken = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    assert taken < 64 << 20
    assert server.seen[0].headers["Accept-Encoding"] == "identity"


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n"])
def test_a_response_that_arrives_byte_by_byte_has_a_deadline(start: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_bounds, "_MOST_SECONDS", 0.3)
    with dripping(start) as url, pytest.raises(RegistryUnavailable, match="does not respond"):
        items(url).decode(THREE)


def test_a_number_that_no_schema_has_is_the_records_fault_and_takes_no_request() -> None:
    with Answering(lambda request: NO_PAGE) as server:
        for number in (b"\x80\0\0\0", b"\xff\xff\xff\xff"):
            with pytest.raises(ValueError, match="is not a schema id: the largest one is 2147483647") as raised:
                items(server.url).decode(b"\0" + number + b"\x06")
            assert ErrorRules().classify(raised.value) is Fault.RECORD
        assert not server.seen


@pytest.mark.parametrize("no_page", [NO_PAGE, (404, b"")])
def test_a_globally_unique_id_is_the_records_fault_where_a_registry_has_none(
    no_page: Answer, clock: list[float]
) -> None:
    """Unless the server is no registry at all."""
    headers = [("__value_schema_id", b"\1" + b"x" * 16)]
    with Answering(lambda request: no_page if "/guids/" in request.path else UNKNOWN) as server:
        with pytest.raises(ValueError, match="has no schema 78787878-7878-7878-7878-787878787878") as raised:
            items(server.url, id_in="header").decode_with(b"\x06", headers)
        assert ErrorRules().classify(raised.value) is Fault.RECORD
        server.answer = lambda request: no_page
        with pytest.raises(RegistryUnavailable, match="Check the path of the address"):
            items(server.url, id_in="header").decode_with(b"\x06", headers)


@pytest.mark.parametrize("answer", [(403, SAID), (404, b"<html>"), UNKNOWN, (307, b"")])
def test_a_refusal_after_the_start_is_no_fault_of_what_is_written(answer: Answer) -> None:
    with Answering(lambda request: answer) as server:
        with pytest.raises(RegistryUnavailable):
            items(server.url).encode(Item(quantity=1))
        with pytest.raises(ConfigError):
            items(server.url).check()


@pytest.mark.parametrize("answer", [(200, b""), (200, b"{}"), (200, b'{"id": "7"}'), (200, b"<html>")])
def test_an_answer_that_is_none_is_no_fault_of_what_is_written_either(answer: Answer) -> None:
    with Answering(lambda request: answer) as server:
        for asked in (lambda: items(server.url).encode(Item(quantity=1)), items(server.url).check):
            with pytest.raises(Retryable, match="is not a schema registry, perhaps a proxy"):
                asked()


TEXT = RegisteredSchema("AVRO", '"string"')
REQUESTS: dict[str, Callable[[Registry], object]] = {
    "schema": lambda registry: registry.schema(7),
    "guid": lambda registry: registry.schema_of_guid("4e5f"),
    "referenced": lambda registry: registry.referenced(Reference("n", "orders-value", 1)),
    "subjects": lambda registry: registry.subjects(),
    "latest": lambda registry: registry.get_latest_version("orders-value"),
    "version": lambda registry: registry.version_of("orders-value", TEXT),
    "id": lambda registry: registry.id_of("orders-value", TEXT),
    "register": lambda registry: registry.register("orders-value", TEXT),
    "compatibility": lambda registry: registry.compatibility("orders-value"),
    "compatible": lambda registry: registry.is_compatible("orders-value", TEXT),
}


def test_no_request_takes_a_failure_for_an_answer() -> None:
    answers: list[tuple[Answer, type[Exception]]] = [
        ((500, SAID), Retryable), (RESET, Retryable), ((403, SAID), ConfigError), ((422, SAID), ConfigError)
    ]  # fmt: skip
    with Answering(lambda request: None) as server:
        registry = Registry(server.url, config={"max.retries": 0})
        for answer, wrong in answers:
            server.answer = lambda request, answer=answer: answer  # type: ignore[misc]
            for ask in REQUESTS.values():
                with pytest.raises(wrong, match=r"respon[ds].* to "):
                    ask(registry)


def test_what_the_registry_does_not_know_is_none() -> None:
    with Answering(lambda request: UNKNOWN) as server:
        registry = Registry(server.url)
        found = {name: REQUESTS[name](registry) for name in ("schema", "guid", "referenced", "latest", "version", "id")}

    assert set(found.values()) == {None}


def test_subjects_are_a_list() -> None:
    with Answering(lambda request: (200, b'["a", "b", "c"]')) as server:
        registry = Registry(server.url)
        assert registry.subjects() == ["a", "b", "c"]
        for body in (b"{}", b'"orders-value"', b"7"):
            server.answer = lambda request, body=body: (200, body)  # type: ignore[misc]
            with pytest.raises(Retryable, match="is not a list of subjects"):
                registry.subjects()


def test_a_subject_without_a_compatibility_of_its_own_has_that_of_all() -> None:
    codes = iter((40401, 40408))

    def answer(request: Request) -> Answer:
        if request.path.partition("?")[0] == "/config":
            return 200, b'{"compatibilityLevel": "FULL"}'
        return 404, json.dumps({"error_code": next(codes), "message": "Subject has no configuration"}).encode()

    with Answering(answer) as server:
        registry = Registry(server.url)
        assert [registry.compatibility("orders-value") for _ in range(2)] == ["FULL", "FULL"]
        server.answer = lambda request: (200, b'{"compatibilityLevel": "FORWARD"}')
        assert registry.compatibility("orders-value") == "FORWARD"


def test_whether_a_schema_is_compatible_is_what_the_registry_says() -> None:
    says = iter((True, False))
    with Answering(lambda request: (200, json.dumps({"is_compatible": next(says)}).encode())) as server:
        registry = Registry(server.url)
        assert [registry.is_compatible("orders-value", TEXT) for _ in range(2)] == [True, False]
        assert json.loads(server.seen[0].body)["schema"] == TEXT.text


def test_a_schema_comes_back_with_its_kind_and_all_that_it_refers_to() -> None:
    references = [{"name": f"n{number}", "subject": f"s{number}", "version": number} for number in (1, 2, 3)]
    whole = {"schema": "{}", "schemaType": "JSON", "references": references, "id": 9, "version": 4}
    known = RegisteredSchema("JSON", "{}", tuple(Reference(f"n{number}", f"s{number}", number) for number in (1, 2, 3)))
    with Answering(lambda request: (200, json.dumps(whole).encode())) as server:
        registry = Registry(server.url)

        assert registry.schema(9) == known
        assert registry.get_latest_version("orders-value") == SubjectVersion(4, 9, known)
        assert (registry.version_of("orders-value", known), registry.id_of("orders-value", known)) == (4, 9)
        assert registry.register("orders-value", known) == 9
        sent = json.loads(server.seen[-1].body)
        assert (sent["schema"], sent["schemaType"], sent["references"]) == ("{}", "JSON", references)


def test_a_reference_to_nothing_is_no_answer_wherever_it_stands() -> None:
    whole: dict[str, Any] = {"schema": "{}"}
    with Answering(lambda request: (200, json.dumps(whole).encode())) as server:
        registry = Registry(server.url)
        for part in ("name", "subject"):
            for wrong in range(3):
                whole["references"] = [{"name": "n", "subject": "s", "version": 1} for _ in range(3)]
                whole["references"][wrong][part] = 7
                with pytest.raises(Retryable, match="it contains a reference without a name"):
                    registry.schema(1)


def test_an_answer_that_is_none_is_not_kept() -> None:
    """Neither of a schema nor of a version: whoever asks again asks the registry."""
    latest = json.dumps({"id": 1, "version": 2, **json.loads(LINE)}).encode()
    with Answering(lambda request: (200, b"{}")) as server:
        codec = items(server.url)
        with pytest.raises(Retryable):
            codec.decode(THREE)
        with pytest.raises(Retryable):
            codec.check_reading()
        server.answer = lambda request: (200, latest if request.path.endswith("/latest") else LINE)

        assert codec.decode(THREE) == Item(quantity=3)
        assert codec.check_reading() == []


def test_the_newest_version_is_asked_for_each_time() -> None:
    numbers = iter((1, 2))
    said = json.loads(LINE)
    with Answering(lambda request: (200, json.dumps({"id": 1, "version": next(numbers), **said}).encode())) as server:
        registry = Registry(server.url)
        found = [registry.get_latest_version("orders-value"), registry.get_latest_version("orders-value")]

    assert [each and each.number for each in found] == [1, 2]


# ---------------------------------------------------------------- what the registry does not know


def known_after(seconds: float, clock: list[float]) -> Callable[[Request], Answer]:
    """A schema that the server hears of so many seconds later."""
    known_at = clock[0] + seconds
    return lambda request: (200, LINE) if clock[0] >= known_at else UNKNOWN


@pytest.mark.parametrize("seconds", [0.1, 1.0, 2.9])
def test_a_schema_of_which_the_server_hears_later_is_waited_for(clock: list[float], seconds: float) -> None:
    """A registry of several servers: the producer has registered it at another one a moment ago."""
    with Answering(known_after(seconds, clock)) as server:
        assert items(server.url).decode(THREE) == Item(quantity=3)


def test_so_is_one_that_a_schema_refers_to(clock: list[float]) -> None:
    line = json.dumps(record("Line", quantity="Number"))
    whole = {"schema": line, "references": [{"name": "Number", "subject": "number", "version": 1}]}
    number = {"id": 2, "version": 1, "schema": '{"type": "fixed", "name": "Number", "size": 2}'}
    late = known_after(1, clock)

    def answer(request: Request) -> Answer:
        if "/schemas/ids/" in request.path:
            return 200, json.dumps(whole).encode()
        return late(request) if late(request) == UNKNOWN else (200, json.dumps(number).encode())

    with Answering(answer) as server, pytest.raises(ValueError, match="quantity is fixed"):
        items(server.url).decode(THREE)
    assert clock[0] >= 101


def test_two_new_ids_in_a_row_are_waited_for(clock: list[float]) -> None:
    with Answering(known_after(1, clock)) as server:
        codec = items(server.url)
        assert codec.decode(THREE) == Item(quantity=3)
        server.answer = known_after(1, clock)

        assert codec.decode(b"\0\0\0\0\x08\x06") == Item(quantity=3)


def test_ids_that_nobody_knows_hold_the_job_up_for_a_share_of_its_time(clock: list[float]) -> None:
    begun = clock[0]
    with Answering(lambda request: UNKNOWN) as server:
        codec = items(server.url)
        for number in range(300):
            clock[0] += 0.1  # whatever else the job does
            with pytest.raises(ValueError, match=f"has no schema {number}"):
                codec.decode(struct.pack(">bIb", 0, number, 2))

    assert clock[0] - begun - 30 < 6 + 30 * 0.15


def test_an_id_that_is_not_known_is_asked_for_again_after_a_while(
    registry: Registry, monkeypatch: pytest.MonkeyPatch, clock: list[float]
) -> None:
    asked, ask = list[int](), registry.schema
    monkeypatch.setattr(registry, "schema", lambda schema_id: (asked.append(schema_id), ask(schema_id))[1])
    codec: Any = avro(Item, registry=registry).for_topic("orders", "value")
    registry.register("other", RegisteredSchema("AVRO", '"string"'))

    def refused(schema_id: int) -> None:
        with pytest.raises(ValueError, match=f"has no schema {schema_id}"):
            codec.decode(struct.pack(">bIb", 0, schema_id, 2))

    for schema_id in (2, 3, 2, 3, 2):
        refused(schema_id)
    assert asked == [2, 3]

    assert registry.register("theirs", RegisteredSchema("AVRO", json.dumps(record("Line", quantity="int")))) == 2
    clock[0] += 6.0
    refused(3)
    assert codec.decode(struct.pack(">bIb", 0, 2, 2)) == Item(quantity=1)
    assert asked == [2, 3, 3, 2]


class Order(BaseModel):
    item: Item


def test_a_start_waits_until_each_server_knows_what_it_has_registered(clock: list[float]) -> None:
    """Also what a schema refers to: each is looked up at a server that hears of it a second later."""
    known_at: dict[str, float] = {}

    def answer(request: Request) -> Answer:
        subject = request.path.split("/")[2].partition("?")[0]
        if request.path.partition("?")[0].endswith("/versions"):
            known_at.setdefault(subject, clock[0] + 1)
            return 200, b'{"id": 1}'
        if request.method == "POST" and clock[0] >= known_at.get(subject, float("inf")):
            return 200, json.dumps({"id": 1, "version": 1, "subject": subject, **json.loads(LINE)}).encode()
        return UNKNOWN

    with Answering(answer) as server:
        orders: Any = avro(
            Order, registry=Registry(server.url), references={Item: "items"}, auto_register=True
        ).for_topic("orders", "value")
        orders.check()

    assert known_at.keys() == {"items", "orders-value"}
    assert orders.encode(Order(item=Item(quantity=3)))[:5] == b"\0\0\0\0\1"


# ---------------------------------------------------------------- what is kept, and what is asked for


def numbered(request: Request) -> Answer:
    """Any id is known: its schema has a name of its own, and some text."""
    number = request.path.rpartition("/")[2].partition("?")[0]
    return 200, json.dumps({"schema": json.dumps({**record(f"L{number}", quantity="int"), "doc": "x" * 2000})}).encode()


def test_thousands_of_schemas_take_no_more_memory_than_the_last_ones(registry: Registry) -> None:
    """Neither here nor in the client."""
    with Answering(numbered) as server:
        codec = items(server.url)
        for number in range(1100):
            assert codec.decode(struct.pack(">bIb", 0, number, 6)) == Item(quantity=3)
        cached = codec._registry._client._cache

        assert sum(len(each) for each in cached.schema_id_index.values()) == 0
        assert len(codec._decoders._kept) == 1000
        before = len(server.seen)
        assert codec.decode(struct.pack(">bIb", 0, 0, 6)) == Item(quantity=3)
        assert len(server.seen) == before + 1


def test_large_schemas_are_kept_as_far_as_their_text_allows() -> None:
    def large(request: Request) -> Answer:
        return 200, json.dumps({"schema": json.dumps({**record("L", quantity="int"), "doc": "x" * 4_000_000})}).encode()

    with Answering(large) as server:
        codec = items(server.url)
        for number in range(5):
            assert codec.decode(struct.pack(">bIb", 0, number, 6)) == Item(quantity=3)

        assert len(codec._decoders._kept) == 4


@pytest.mark.parametrize("schema", ["{", json.dumps(record("L", quantity="string"))])
def test_a_schema_whose_values_cannot_be_read_is_fetched_once(schema: str) -> None:
    """Each of many records would parse it again, which takes seconds if it is large."""
    with Answering(lambda request: (200, json.dumps({"schema": schema}).encode())) as server:
        codec = items(server.url)
        said = set()
        for _ in range(3):
            with pytest.raises(ValueError, match=r".") as raised:
                codec.decode(THREE)
            said.add(str(raised.value))

        assert (len(server.seen), len(said)) == (1, 1)


def test_a_schema_that_is_too_large_is_the_records_fault(clock: list[float]) -> None:
    """Parsing one of 16 megabytes took longer than a worker may be without progress, again after each restart."""
    large = json.dumps({"schema": json.dumps({**record("L", quantity="int"), "doc": "x" * (5 << 20)})}).encode()
    with Answering(lambda request: (200, large) if "/ids/7" in request.path else UNKNOWN) as server:
        with pytest.raises(ValueError, match="responded to schema 7 with too much: it has more than") as raised:
            items(server.url).decode(THREE)

        assert ErrorRules().classify(raised.value) is Fault.RECORD


def test_schemas_that_are_too_large_together_are_the_records_fault() -> None:
    many = [{"name": f"n{number}", "subject": f"s{number}", "version": 1} for number in range(9)]
    top = json.dumps({**json.loads(LINE), "references": many}).encode()
    part = json.dumps({"schema": json.dumps("x" * (1 << 20)), "version": 1, "id": 1}).encode()
    with Answering(lambda request: (200, top) if "/ids/7" in request.path else (200, part)) as server:
        with pytest.raises(ValueError, match="with the schemas that it refers to") as raised:
            items(server.url).decode(THREE)

        assert len(server.seen) == 5
    assert ErrorRules().classify(raised.value) is Fault.RECORD


def test_schemas_that_many_refer_to_are_asked_for_once(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of 25 refers to all before it: there are 33 million ways down."""
    asked, ask = list[Reference](), registry.referenced
    monkeypatch.setattr(registry, "referenced", lambda each: (asked.append(each), ask(each))[1])
    references: list[Reference] = []
    for number in range(25):
        registry.register(f"s{number}", RegisteredSchema("AVRO", f'"n{number}"', tuple(references)))
        references.append(Reference(f"n{number}", f"s{number}", 1))

    found = fetch_references(RegisteredSchema("AVRO", '"top"', tuple(references)), registry)

    assert list(found) == [f"n{number}" for number in range(25)]
    assert len(asked) == 25


def test_schemas_without_end_are_refused(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    def another(reference: Reference) -> RegisteredSchema:
        return RegisteredSchema("AVRO", "{}", (Reference(f"{reference.name}x", f"{reference.subject}x", 1),))

    monkeypatch.setattr(registry, "referenced", another)
    many = tuple(Reference(f"n{number}", "s", number) for number in range(1001))

    with pytest.raises(ValueError, match="more than 32 deep"):
        fetch_references(RegisteredSchema("AVRO", "{}", (Reference("n", "s", 1),)), registry)
    monkeypatch.setattr(registry, "referenced", lambda reference: RegisteredSchema("AVRO", "{}"))
    with pytest.raises(ValueError, match="more than 1000 schemas"):
        fetch_references(RegisteredSchema("AVRO", "{}", many), registry)


# ---------------------------------------------------------------- logins


def test_a_login_in_a_file_may_change(tmp_path: Path) -> None:
    """First at the registry: it refuses for now, and nobody is at fault. Then in the file."""
    file, logins = tmp_path / "login", ["ann:one"]
    file.write_text("ann:one\n")

    def answer(request: Request) -> Answer:
        wanted = f"Basic {base64.b64encode(logins[-1].encode()).decode()}"
        return (200, b'{"schema": "\\"string\\""}') if request.headers["Authorization"] == wanted else (401, SAID)

    with Answering(answer) as server:
        registry = Registry(server.url, config={"basic.auth.user.info.from_file": str(file), "max.retries": 0})
        assert registry.schema(1) is not None
        logins.append("ann:two")
        with pytest.raises(Retryable, match="responded to schema 2"):
            registry.schema(2)
        file.unlink()
        with pytest.raises(Retryable, match="login cannot be read"):
            registry.schema(2)
        file.write_text("ann:two")

        assert registry.schema(2) is not None
    assert "two" not in repr(registry) and str(file) in repr(registry)


def test_a_token_that_cannot_be_had_now_is_nobodys_fault() -> None:
    with Answering(lambda request: (503, b"")) as server:
        config = {
            "bearer.auth.credentials.source": "OAUTHBEARER",
            "bearer.auth.client.id": "ann",
            "bearer.auth.client.secret": "one",
            "bearer.auth.scope": "schemas",
            "bearer.auth.issuer.endpoint.url": f"{server.url}/token",
            "bearer.auth.logical.cluster": "lsrc-1",
            "max.retries": 0,
        }
        with pytest.raises(Retryable, match="cannot serve schema 7 now"):
            Registry(server.url, config=config).schema(7)


def test_a_token_that_says_too_little_is_a_mistake() -> None:
    config: dict[str, Any] = {
        "bearer.auth.credentials.source": "CUSTOM",
        "bearer.auth.custom.provider.function": lambda config: {"bearer.auth.token": "t"},
        "bearer.auth.custom.provider.config": {},
    }
    with pytest.raises(ConfigError, match=r"cannot serve schema 7: .*bearer\.auth\.logical\.cluster"):
        Registry("http://127.0.0.1:1", config=config).schema(7)


def test_a_file_of_a_login_that_is_missing_at_first_is_a_mistake(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="login cannot be read: No such file"):
        Registry("http://registry:8081", config={"basic.auth.user.info.from_file": str(tmp_path / "login")})


def test_a_registry_that_is_away_is_nobodys_fault() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    orders = items(f"http://127.0.0.1:{port}")

    with pytest.raises(Retryable, match="does not respond to schema 7"):
        orders.decode(b"\0\0\0\0\7rest")
    with pytest.raises(Retryable, match="does not respond to subject 'orders-value'"):
        orders.encode(Item(quantity=1))
    with pytest.raises(Retryable, match="does not respond to subject 'orders-value'"):
        orders.check()


# ---------------------------------------------------------------- what it does not take


def test_a_schema_that_is_not_taken_says_in_words_what_differs_and_what_to_do() -> None:
    theirs = {"id": 3, "version": 4, "schema": json.dumps(record("Item", quantity="string", note="string"))}

    def answer(request: Request) -> Answer:
        match request.method, request.path.partition("?")[0]:
            case "POST", "/subjects/orders-value/versions":
                return 409, b'{"error_code": 409, "message": "io.example.Incompatible: rule COMPATIBILITY"}'
            case "POST", _:
                return 404, b'{"error_code": 40403, "message": "Schema not found"}'
            case _, "/config/orders-value":
                return 200, b'{"compatibilityLevel": "BACKWARD"}'
        return 200, json.dumps(theirs).encode()

    with Answering(answer) as server, pytest.raises(ConfigError) as refused:
        items(server.url, auto_register=True).check()

    said = str(refused.value)
    assert "subject 'orders-value' of the schema registry" in said
    assert (
        "In its newest version, 4, it differs: quantity is string there, long here; note (string) is only there" in said
    )
    assert "The subject requires BACKWARD. Make the change compatible: a new field needs a default" in said
    assert "io.example.Incompatible" in said
