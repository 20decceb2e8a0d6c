"""Only what the record did is the record's fault."""

from __future__ import annotations

import bz2
import gzip
import importlib
import json
import re
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from kafka_eos import Pipeline, monotonic, tumbling
from kafka_eos.abc.codec import Codec, ListCodec
from kafka_eos.abc.context import TaskContext
from kafka_eos.abc.sink import DeadLetters
from kafka_eos.core.error_messages import describe_error
from kafka_eos.core.errors import (
    ConfigError,
    EnvironmentFailed,
    PlanError,
    PoisonRecord,
    RegistryUnavailable,
    RestartFromCheckpoint,
    Retryable,
)
from kafka_eos.core.fault_attribution import ErrorRules, Fault
from kafka_eos.core.records import Batch
from kafka_eos.plan import Plan
from kafka_eos.plan.explain import explain
from kafka_eos.runtime.exchange import wire_format as wire
from kafka_eos.runtime.operators.operator_chain import OperatorChain
from kafka_eos.testing import ListSource, MemorySink, run_local
from kafka_eos.testing.list_source import ListOrigin


class DriverError(Exception):
    """As many database drivers have: no OSError."""


class NoRow(DriverError):
    """A more special one."""


def _raised(raises: Callable[[], Any]) -> Exception:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        raises()
    return caught.value


def _wrapped(inner: Exception, outer: Exception, *, chained: str) -> Exception:
    def raises() -> None:
        try:
            raise inner
        except type(inner) as error:
            if chained == "from":
                raise outer from error
            if chained == "from None":
                raise outer from None
            raise outer  # noqa: B904 - as a careless codec does

    return _raised(raises)


ENVIRONMENTS = [
    ConnectionRefusedError(111, "refused"),
    TimeoutError("slow"),
    socket.gaierror(-2, "unknown host"),
    OSError(28, "No space left on device"),
    ssl.SSLCertVerificationError("expired"),
    _raised(lambda: importlib.import_module("that_is_not_installed")),
    Retryable("the broker does not answer"),
    RestartFromCheckpoint("fenced"),
    EnvironmentFailed("of another function"),
    ExceptionGroup("tasks", [ValueError("bad"), ConnectionResetError("reset")]),
    _wrapped(ConnectionResetError("reset"), ValueError("cannot decode"), chained="from"),
    _wrapped(ConnectionResetError("reset"), DriverError("lost"), chained="implicitly"),
]
RECORDS = [
    ValueError("bad"),
    _raised(lambda: b"\xff".decode()),
    _raised(lambda: json.loads("{")),
    KeyError("account"),
    ZeroDivisionError("division by zero"),
    RecursionError("too deep"),
    AssertionError("no"),
    DriverError("unknown to all"),
    _wrapped(KeyError("a"), ValueError("bad"), chained="from"),
    _wrapped(ImportError("no faster one"), ValueError("bad"), chained="implicitly"),
    _raised(lambda: ZoneInfo("Europe/Nowhere")),
    _raised(lambda: ZoneInfo("Europe")),
    _raised(lambda: ZoneInfo("x" * 300)),
    _raised(lambda: subprocess.run(["true", "x" * 10**6], check=True)),
    _raised(lambda: datetime.fromtimestamp(1_700_000_000_000_000_000)),
    _raised(lambda: time.gmtime(-(10**17))),
    _raised(lambda: gzip.decompress(b"no gzip")),
    _raised(lambda: bz2.decompress(b"no bzip2")),
    _raised(lambda: socket.inet_aton("1.2.3.4.5")),
    _raised(lambda: socket.inet_pton(socket.AF_INET6, "::g")),
    _raised(lambda: "x" * 10**18),
    _wrapped(ConnectionResetError("reset"), ValueError("bad"), chained="from None"),
]


@pytest.mark.parametrize("error", ENVIRONMENTS, ids=repr)
def test_what_something_else_did_is_the_environments(error: Exception) -> None:
    assert ErrorRules().classify(error) is Fault.ENVIRONMENT


@pytest.mark.parametrize("error", RECORDS, ids=repr)
def test_what_the_record_did_is_the_records(error: Exception) -> None:
    assert ErrorRules().classify(error) is Fault.RECORD


def test_a_lack_of_memory_is_the_environments() -> None:
    code = """
import resource
from kafka_eos.core.fault_attribution import ErrorRules
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
taken = []
try:
    while True:
        taken.append(bytes(1 << 20))
except MemoryError as error:
    print(ErrorRules().classify(error).name)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "ENVIRONMENT\n"


def test_a_registry_that_is_away_is_named_and_no_function_is() -> None:
    with pytest.raises(EnvironmentFailed) as raised:
        ErrorRules().expect_record(_raised(lambda: _away()), "orders", "in/0/7")
    assert str(raised.value) == (
        "the registry does not answer, in operator 'orders', at the record in/0/7 (topic/partition/offset). That is "
        "not the record's fault: it is neither rejected nor skipped, and is processed again from the last checkpoint"
    )


def _away() -> None:
    raise RegistryUnavailable("the registry does not answer")


def test_our_own_errors_say_themselves_what_comes_next() -> None:
    assert ErrorRules().classify(ConfigError("set it")) is Fault.JOB
    assert ErrorRules().classify(PlanError("write it")) is Fault.JOB


def test_the_user_adds_to_both_and_the_most_special_class_decides() -> None:
    said = ErrorRules(environment=(DriverError, ValueError), record=(FileNotFoundError, NoRow))

    assert said.classify(DriverError("down")) is Fault.ENVIRONMENT
    assert said.classify(NoRow("none")) is Fault.RECORD
    assert said.classify(FileNotFoundError(2, "no such picture")) is Fault.RECORD
    assert said.classify(PermissionError(13, "denied")) is Fault.ENVIRONMENT
    assert ErrorRules(environment=(IsADirectoryError,)).classify(IsADirectoryError(21, "it is")) is Fault.ENVIRONMENT
    assert said.classify(_raised(lambda: b"\xff".decode())) is Fault.ENVIRONMENT
    assert said.classify(_wrapped(NoRow("none"), RuntimeError("lookup"), chained="from")) is Fault.RECORD


def test_a_chain_that_ends_in_itself_is_read_once() -> None:
    one, other = RuntimeError("one"), RuntimeError("other")
    one.__cause__, other.__cause__ = other, one

    assert ErrorRules().classify(one) is Fault.RECORD


# ---------------------------------------------------------------- in a plan


def down(*_: Any) -> Any:
    raise ConnectionRefusedError(111, "registry")


VERBS: dict[str, Callable[[Any], Any]] = {
    "map": lambda stream: stream.map(down, name="at-fault"),
    "filter": lambda stream: stream.filter(down, name="at-fault"),
    "flat_map": lambda stream: stream.flat_map(down, name="at-fault"),
    "map_batches": lambda stream: stream.map_batches(down, name="at-fault"),
    "key_by": lambda stream: stream.key_by(down, name="at-fault").reduce(max, name="r"),
    "fold": lambda stream: stream.key_by(str, name="k").fold(init=int, step=down, name="at-fault"),
    "emit": lambda stream: stream.key_by(str, name="k").fold(
        init=int, step=lambda acc, value: acc + value, emit=down, name="at-fault"
    ),
    "merge": lambda stream: stream.key_by(str, name="k").fold(
        init=int, step=lambda acc, value: acc + value, merge=lambda a, b: a + b, emit=down, name="at-fault"
    ),
    "reduce": lambda stream: stream.key_by(lambda value: "k", name="k").reduce(down, name="at-fault"),
}


@pytest.mark.parametrize("letters", [True, False])
@pytest.mark.parametrize("verb", VERBS)
def test_no_operator_refuses_a_record_for_what_the_environment_did(verb: str, letters: bool) -> None:
    policy: dict[str, Any] = {"on_error": DeadLetters(MemorySink())} if letters else {}
    pipeline = Pipeline("attribution")
    VERBS[verb](pipeline.source(ListSource([]), name="numbers", **policy)).sink(MemorySink(), name="out")

    with pytest.raises(EnvironmentFailed) as failed:
        run_local(pipeline, {"numbers": [1, 2, 3]})

    said = str(failed.value)
    assert "down (test_attribution.py, line " in said
    assert "ConnectionRefusedError: [Errno 111] registry" in said
    assert "'at-fault'" in said
    assert "numbers/0/" in said


def _plan(**policy: Any) -> Plan:
    pipeline = Pipeline("attribution")
    pipeline.source(ListSource([]), name="numbers", **policy).rebalance(name="spread").sink(MemorySink(), name="out")
    return pipeline.plan()


def _batch() -> Batch[Any]:
    return Batch([1, 2], range(2), ListOrigin("numbers", "in", 0, 10, [1, 2]))


@pytest.mark.parametrize("letters", [True, False])
def test_readers_and_writers_ask_the_same(letters: bool) -> None:
    plan = _plan(**({"on_error": DeadLetters(MemorySink())} if letters else {}))
    written: list[Batch[Any]] = []
    chain = OperatorChain(plan, {}, {sink.name: written.append for sink in plan.sinks})

    with pytest.raises(EnvironmentFailed, match=r"refused.*'numbers'.*in/0/10"):
        chain.rejections.reject_record("numbers", _batch().origin.raw(0), ConnectionRefusedError("refused"))
    with pytest.raises(EnvironmentFailed, match=r"refused.*'out'.*in/0/11"):
        chain.rejections.reject_output(_batch(), 1, "out", ConnectionRefusedError("refused"))
    chain.flush_rejected("numbers")
    assert written == []


class _DownCodec(ListCodec[Any]):
    """Of an exchange, whose registry is away."""

    name = "down"

    def encode(self, values: Any) -> bytes:
        raise ValueError("no schema") from ConnectionRefusedError("registry")

    def decode(self, data: bytes) -> list[Any]:
        raise ConnectionRefusedError("registry")


def test_exchanges_ask_the_same() -> None:
    from msgspec.structs import replace

    plan = _plan()
    node = replace(plan.node("spread"), value_codec=_DownCodec())  # type: ignore[call-arg]
    frame = wire.encode_at(plan, plan.node("spread"), [_batch()])

    with pytest.raises(EnvironmentFailed, match=r"Codec\.encode .*no schema.*registry.*'spread'.*in/0/10"):
        wire.encode_at(plan, node, [_batch()])
    with pytest.raises(EnvironmentFailed, match=r"Codec\.decode .*registry.*in/0/10"):
        wire.decode(frame, _DownCodec())


def test_a_writer_looks_no_further_when_the_environment_fails() -> None:
    """Each row would wait for its own timeout."""
    from kafka_eos.connectors._shared.row_errors import BadRows, map_rows

    asked: list[int] = []

    def lookup(value: int) -> bytes:
        asked.append(value)
        raise TimeoutError("slow") if value == 2 else ValueError("bad")

    with pytest.raises(BadRows) as bad:
        map_rows(lookup, [1, 2, 3, 4])

    assert asked == [1, 2]
    assert [type(error) for error in bad.value.errors.values()] == [ValueError, TimeoutError]


def test_a_file_sink_says_that_the_environment_failed(tmp_path: Any) -> None:
    from kafka_eos.abc.context import JobContext
    from kafka_eos.connectors.files import FileSink
    from kafka_eos.core.ids import Term

    class Down(Codec[Any]):
        name = "json"
        encode = decode = staticmethod(down)

    writer = FileSink(tmp_path, value=Down()).writer(TaskContext(JobContext("j", Term(1), {}), 0, 1, "out"))

    with pytest.raises(EnvironmentFailed, match=r"down .*'out'.*in/0/10"):
        writer.write(_batch())


def _amount(value: int) -> int:
    return json.loads(f"{value}!")  # type: ignore[no-any-return]


def test_a_poison_record_names_the_lines_of_the_users_code_and_no_others() -> None:
    """Neither those of this package, nor those of the library that raised."""
    pipeline = Pipeline("attribution")
    pipeline.source(ListSource([]), name="numbers").map(lambda n: _amount(n) + 1, name="amount").sink(
        MemorySink(), name="out"
    )

    with pytest.raises(PoisonRecord) as refused:
        run_local(pipeline, {"numbers": [1]})
    places = r"\(raised at \S+/test_attribution\.py:\d+ in <lambda>, \S+/test_attribution\.py:\d+ in _amount\)"
    assert re.fullmatch(rf"JSONDecodeError: Extra data: .* {places}", refused.value.reason)


def test_of_a_long_way_the_innermost_lines_are_told_and_without_any_the_error_alone() -> None:
    def down(levels: int) -> None:
        if not levels:
            raise ValueError("bottom")
        down(levels - 1)

    said = describe_error(_raised(lambda: down(50)))
    assert said.startswith("ValueError: bottom (raised at ")
    assert said.count(" in down") == 6
    assert describe_error(ValueError("never raised")) == "ValueError: never raised"


def test_of_a_long_message_a_letter_has_the_beginning_and_no_halves_of_characters() -> None:
    """A library put a schema of a megabyte into its message: the letter was too large for its topic."""

    def at_fault(number: int) -> int:
        raise ValueError("\ud800" + "x" * 1_000_000)

    pipeline = Pipeline("long")
    numbers = pipeline.source(ListSource([]), name="numbers", on_error=DeadLetters(MemorySink()))
    numbers.map(at_fault, name="at-fault").sink(MemorySink(), name="out")

    (letter,) = run_local(pipeline, {"numbers": [1]})["numbers-dead-letters"]

    assert letter.message == "\\ud800" + "x" * 3999 + " … (996,001 more characters)"


def test_an_error_and_a_result_that_cannot_be_converted_to_text_become_dead_letters() -> None:
    """Python refuses to print a number of so many digits, also as the argument of a KeyError."""
    number = 10**5000

    def missing(value: object) -> object:
        return {}[number]

    pipeline = Pipeline("no-text")
    numbers = pipeline.source(ListSource([]), name="numbers", on_error=DeadLetters(MemorySink()))
    numbers.map(missing, name="missing").sink(MemorySink(), name="out")
    windows = numbers.with_timestamps(int, watermarks=monotonic(), name="timed").key_by(str).window(tumbling(seconds=1))
    results = windows.fold(name="counts", init=int, step=lambda count, _: count + 1).map(lambda _: number, name="large")
    results.map(missing, name="missing-too").sink(MemorySink(), name="results")

    found = run_local(pipeline, {"numbers": [1, 5000]})["numbers-dead-letters"]

    assert {letter.operator for letter in found} == {"missing", "missing-too"}
    assert {letter.message for letter in found} == {"<KeyError that cannot be converted to text: ValueError>"}


def test_what_the_user_says_holds_in_the_plan_and_is_explained() -> None:
    pipeline = Pipeline("attribution")

    def lookup(value: int) -> int:
        raise {1: FileNotFoundError("picture"), 2: DriverError("down")}[value]

    source = pipeline.source(
        ListSource([]), name="numbers", environment_errors=DriverError, record_errors=(FileNotFoundError,)
    )
    source.map(lookup, name="lookup").sink(MemorySink(), name="out")

    with pytest.raises(PoisonRecord, match="picture"):
        run_local(pipeline, {"numbers": [1]})
    with pytest.raises(EnvironmentFailed, match="DriverError: down"):
        run_local(pipeline, {"numbers": [2]})
    assert "environment_errors: DriverError; record_errors: FileNotFoundError" in explain(pipeline.plan())


@pytest.mark.parametrize("given", [{"record_errors": "OSError"}, {"environment_errors": (KeyboardInterrupt,)}])
def test_errors_are_classes_of_exceptions(given: Any) -> None:
    with pytest.raises(PlanError, match="classes of exceptions"):
        Pipeline("attribution").source(ListSource([]), name="numbers", **given)


def test_one_error_cannot_be_both() -> None:
    with pytest.raises(PlanError, match="KeyError is both"):
        Pipeline("attribution").source(
            ListSource([]), name="numbers", environment_errors=KeyError, record_errors=KeyError
        )
