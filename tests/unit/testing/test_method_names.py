"""Methods that are named almost like one of the contract are refused, with the right name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import kafka_eos.connectors
from kafka_eos import Pipeline
from kafka_eos.abc import JobContext, Positions, TaskContext
from kafka_eos.connectors.dbapi import DbApiSink
from kafka_eos.plan.explain import explain
from kafka_eos.testing import (
    ContractBroken,
    ListSource,
    MemorySink,
    SinkUnderTest,
    SourceUnderTest,
    check_sink,
    check_source,
)
from kafka_eos.testing.list_source import ListReader
from kafka_eos.testing.memory_sink import MemoryCommitter, MemoryWriter
from kafka_eos.testing.method_names import ABILITIES, find_wrong_names


class FeeSink(MemorySink):
    """Has an attribute of its own, as any class may."""

    price = 0.05


def explained(sink: MemorySink) -> str:
    pipeline = Pipeline("fees")
    pipeline.source(ListSource([1]), name="in").sink(sink, name="out")
    return explain(pipeline.plan())


def test_an_attribute_of_its_own_means_nothing() -> None:
    assert "exactly-once" in explained(FeeSink())
    assert not find_wrong_names(FeeSink)


def test_a_method_with_the_contracts_name_is_used() -> None:
    class NearlyNamedSink(MemorySink):
        def trade_offs(self) -> Sequence[str]:
            return ("nothing survives the process",)

    assert "nothing survives the process" in explained(NearlyNamedSink())


class Mistyped(MemorySink):
    def tradeoffs(self) -> Sequence[str]:
        return ()


class NoMethod(MemorySink):
    trade_offs = 0.05  # type: ignore[assignment]


class Unlocked(MemorySink):
    def clock(self, ctx: JobContext) -> tuple[float, float] | None:
        return None


class Overrides(DbApiSink[Any]):
    def rows(self, value: Any) -> Sequence[Any]:
        return ()


class Noticing(MemoryWriter):
    def notify_commited(self, epoch: Any) -> None: ...


class Checking(MemoryCommitter):
    def find_missing_commit(self, ctx: JobContext) -> None: ...


class Ending(ListSource):
    def bound(self, positions: Positions) -> Positions:
        return positions


class Comparing(ListSource):
    def ensure_same_input(self, ctx: JobContext, read: object) -> None: ...


class Lagging(ListReader):
    def lag_by_split(self) -> dict[str, int]:
        return {}


@pytest.mark.parametrize(
    ("kind", "right"),
    [
        (Mistyped, "tradeoffs is never called: name it trade_offs"),
        (NoMethod, "trade_offs is a method of the contract, but here it is 0.05"),
        (Unlocked, " does not inherit HasClock, so clock is never called"),
        (Overrides, "rows is never called: name it row"),
        (Noticing, "notify_commited is never called: name it notify_committed"),
        (
            Checking,
            "so find_missing_commit is never called: inherit it, with find_missing_commits",
        ),
        (Ending, "bound is never called: name it bounds"),
        (Comparing, " does not inherit SupportsIdentityCheck, so ensure_same_input is never called"),
        (Lagging, "lag_by_split is never called: name it get_lag_by_split"),
    ],
)
def test_a_mistyped_method_is_named_with_the_right_name(kind: type, right: str) -> None:
    (wrong,) = find_wrong_names(kind)

    assert wrong.startswith(kind.__name__)
    assert right in wrong


def test_the_contract_test_of_a_sink_refuses_it() -> None:
    with pytest.raises(ContractBroken, match="name it trade_offs"):
        check_sink(lambda: SinkUnderTest("test_method_names:Mistyped", {}, list), "happy-path")


@pytest.mark.parametrize("kind", [Ending, Comparing])
def test_the_contract_test_of_a_source_refuses_it(kind: type[ListSource]) -> None:
    with pytest.raises(ContractBroken, match="is never called"):
        check_source(lambda: SourceUnderTest(lambda: kind("abcd"), [*"abcd"]), "reads-all")


def test_the_contract_test_refuses_what_is_no_reader() -> None:
    class Plain(ListSource):
        def reader(self, ctx: TaskContext, positions: Positions) -> Any:
            reader = super().reader(ctx, positions)
            return type("Duck", (), {"close": reader.close})()

    with pytest.raises(ContractBroken, match="Duck is not a subclass of Reader in kafka_eos.abc"):
        check_source(lambda: SourceUnderTest(lambda: Plain("abcd"), [*"abcd"]), "reads-all")


def list_subclasses(contract: type) -> Iterator[type]:
    for each in contract.__subclasses__():
        yield each
        yield from list_subclasses(each)


def test_no_connector_of_this_package_is_refused() -> None:
    for module in pkgutil.walk_packages(kafka_eos.connectors.__path__, "kafka_eos.connectors."):
        importlib.import_module(module.name)
    kinds = {kind for contract in ABILITIES for kind in list_subclasses(contract) if "connectors" in kind.__module__}

    assert len(kinds) > 20
    assert {kind: wrong for kind in kinds if (wrong := find_wrong_names(kind))} == {}
