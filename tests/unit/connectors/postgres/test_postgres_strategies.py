"""Which strategy a PostgresSink uses."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from kafka_eos.connectors._staged_tables.stage_names import Strategy
from kafka_eos.connectors.postgres.sink.write_strategy import StrategyFacts, choose_strategy, obstacles

FIT = StrategyFacts(keyed=False, ties=(), slots=10, free=8, writers=4, interval=60.0)


def test_transactions_are_prepared_where_all_allows_it() -> None:
    assert choose_strategy(None, FIT) is Strategy.PREPARE
    assert choose_strategy(None, replace(FIT, interval=None)) is Strategy.PREPARE
    assert not [*obstacles(FIT)]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"keyed": True}, "its output is committed with the next one, which would wait for these locks forever"),
        ({"ties": ("a unique index or key",)}, "its table has a unique index or key"),
        ({"slots": 0, "free": 0}, "max_prepared_transactions = 0, its default"),
    ],
)
def test_what_makes_them_unsafe_is_said_and_rows_are_staged_instead(change: dict[str, object], said: str) -> None:
    facts = replace(FIT, **change)  # type: ignore[arg-type]

    assert choose_strategy(None, facts) is Strategy.STAGE
    assert said in "; ".join(obstacles(facts))


def test_a_setting_of_the_server_is_not_blamed_where_it_would_not_help() -> None:
    facts = replace(FIT, keyed=True, slots=0, free=0)

    assert "max_prepared_transactions" not in "; ".join(obstacles(facts))


@pytest.mark.parametrize("change", [{"free": 7}, {"interval": 60.5}])
def test_what_makes_them_dear_keeps_only_those_from_them_who_have_not_asked(change: dict[str, object]) -> None:
    facts = replace(FIT, **change)  # type: ignore[arg-type]

    assert choose_strategy(None, facts) is Strategy.STAGE
    assert not [*obstacles(facts)]
    assert choose_strategy(Strategy.PREPARE, facts) is Strategy.PREPARE


def test_who_asks_for_staging_tables_gets_them() -> None:
    assert choose_strategy(Strategy.STAGE, FIT) is Strategy.STAGE
