"""A job that ran, whose outputs are written once more with something wrong in each sink, and one audit of all.

A pipeline has a sink for each corruption, in a topic of its own. Rule: a corruption says what the audit must find in
its sink, and how often; anything else is a false alarm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest

from kafka_eos.audit import Check, Verdict
from kafka_eos.core.provenance import HEADER
from tests.audit.job import Job, Out
from tests.chaos.harness import read
from tests.marks import campaign

Outs: TypeAlias = list[Out]
Spoil: TypeAlias = Callable[[Outs], Outs]


@dataclass(frozen=True)
class Corruption:
    """``sink`` begins with the stream that it writes."""

    sink: str
    spoil: Spoil
    found: Mapping[Check, int]


@dataclass(frozen=True)
class Spoilt:
    """What the job put out, by sink, and the verdict on what was made of it."""

    outs: Mapping[str, Outs]
    verdict: Verdict
    wanted: Mapping[str, Mapping[Check, int]]

    def expect_named(self) -> None:
        """Each corruption is named, and nothing else is."""
        assert found(self.verdict) == self.wanted, shown(self.verdict)


def some_or_every(corruptions: tuple[Corruption, ...], some: Sequence[str]) -> pytest.MarkDecorator:
    """Parametrises ``corruptions``: what an audit takes grows with its sinks, so `make test` has those of ``some``."""
    chosen = tuple(each for each in corruptions if each.sink in some)
    assert len(chosen) == len(some)
    return pytest.mark.parametrize(
        "corruptions", [pytest.param(chosen, id="some"), campaign(corruptions, named="every")]
    )


def spoilt(
    job: Job, new_job: Callable[..., Job], topic: Callable[..., str], pipeline: str, given: Mapping[str, Any],
    corruptions: Sequence[Corruption], spark: Any,
) -> Spoilt:  # fmt: skip
    """``given`` is what was written into ``pipeline``: its ``topics`` are those of the sinks, by their names."""
    outs = {c.sink: [out(message) for message in read(job.bootstrap, given["topics"][c.sink])] for c in corruptions}
    copies = {**given, "topics": {sink: topic() for sink in outs}}
    again = new_job(pipeline, **copies)
    again.name = job.name
    again.app.write_text(pipeline.format(name=job.name, **copies))
    again.write_all({copies["topics"][c.sink]: c.spoil(outs[c.sink]) for c in corruptions})
    wanted = {c.sink.replace(" ", "-"): dict(c.found) for c in corruptions if c.found}
    return Spoilt(outs, again.audit(spark), wanted)


def without(outs: Outs, index: int) -> Outs:
    return [*outs[:index], *outs[index + 1 :]]


def found(verdict: Verdict) -> dict[str, dict[Check, int]]:
    by_sink: dict[str, dict[Check, int]] = {}
    for finding in verdict.findings:
        for sink, count in finding.by_sink.items():
            by_sink.setdefault(sink, {})[finding.check] = count  # type: ignore[index]
    return by_sink


def shown(verdict: Verdict) -> Sequence[str]:
    each = (f"{f.check.value} {dict(f.by_sink)} {offender}" for f in verdict.findings for offender in f.examples)
    return [verdict.headline, *each]


def out(message: Any) -> Out:
    text = dict(message.headers())[HEADER].decode()
    return Out(message.key().decode(), message.value(), text, 0, (), message.timestamp()[1])
