"""The contract test can fail: each planted bug is caught, by the check that is meant to, with words."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import broken_sinks
import pytest

from kafka_eos.connectors.files import FileSink
from kafka_eos.core.json_values import Json
from kafka_eos.testing import SINK_CHECKS, ContractBroken, SinkUnderTest, check_sink

PLANTED = [(kind, *words) for kind, found in broken_sinks.BROKEN.items() for words in found.items()]


def _target(kind: type[Any], tmp_path: Path) -> SinkUnderTest:
    files = issubclass(kind, FileSink)
    name = str(tmp_path / "out") if files else uuid.uuid4().hex
    sink = broken_sinks.build(kind.__name__, name)

    def read_back() -> list[Any]:
        if not files:
            return list(sink.committed)
        parts = sorted(Path(name).glob("part-*.jsonl"))
        return [json.loads(line) for part in parts for line in part.read_text().splitlines()]

    take_away = None if files else sink.committed.clear
    arguments: dict[str, Json] = {"kind": kind.__name__, "name": name}
    return SinkUnderTest("broken_sinks:build", arguments, read_back, remove_visible=take_away)


@pytest.mark.parametrize(("kind", "check", "words"), PLANTED, ids=[f"{kind.__name__}-{c}" for kind, c, _ in PLANTED])
def test_planted_bug_is_caught(kind: type[Any], check: str, words: str, tmp_path: Path) -> None:
    """The message starts with the check's name and its claim, and goes on with what was seen."""
    with pytest.raises(ContractBroken) as caught:
        check_sink(lambda: _target(kind, tmp_path), check)

    claim, _, seen = str(caught.value).partition("\n")
    assert claim == f"{check}: {SINK_CHECKS[check].__doc__}"
    assert words in seen


def test_every_check_has_caught_a_planted_bug() -> None:
    """A check that no planted bug can fail proves nothing."""
    assert {check for _, check, _ in PLANTED} == set(SINK_CHECKS)


def test_a_sink_in_memory_is_spared_the_checks_that_need_two_processes() -> None:
    """Otherwise MemorySink could not be checked at all; naming such a check runs it all the same."""
    ran: list[str] = []
    fresh = _recording(ran)
    check_sink(fresh, seeds=[7])

    assert len(ran) == len(SINK_CHECKS)
    with pytest.raises(ContractBroken, match="the writer's process was killed"):
        check_sink(fresh, "writer-killed")


def test_the_check_that_takes_output_away_asks_for_the_means() -> None:
    """By name; a run of all checks leaves it out, as the test above shows."""
    with pytest.raises(ContractBroken, match=r"SinkUnderTest\.take_away"):
        check_sink(_recording([]), "visible-output-removed")


def _recording(ran: list[str]) -> Callable[[], SinkUnderTest]:
    def fresh() -> SinkUnderTest:
        name = uuid.uuid4().hex
        ran.append(name)
        sink = broken_sinks.build("OnlyInMemory", name)
        return SinkUnderTest(
            "broken_sinks:build",
            {"kind": "OnlyInMemory", "name": name},
            lambda: list(sink.committed),
            single_process=True,
        )

    return fresh
