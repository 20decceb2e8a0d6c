"""The examples of the docs do what they say."""

from __future__ import annotations

from pathlib import Path

from kafka_eos.core.ids import AppRef
from kafka_eos.runtime.program import load_program
from kafka_eos.testing import run_local

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def test_a_click_is_enriched_dropped_or_written_aside() -> None:
    pipeline = load_program(AppRef(EXAMPLES / "enrich.py"))
    click, visit = (pipeline.plan().sources[0].source.value_type, "visits")
    clicks = [click("ann", "/a?x=1", "de"), click("bot", "/health", "us"), click("eve", "/b", "atlantis")]

    out = run_local(pipeline, {"clicks": clicks})

    assert [(v.user, v.page, v.region) for v in out.pop(visit)] == [("ann", "/a", "eu")]
    (refused,) = out.values()
    assert len(refused) == 1
