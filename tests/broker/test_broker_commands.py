"""Topics, records and readers by hand: ``kafka-eos broker topic|produce|consume`` on a real broker."""

from __future__ import annotations

from collections.abc import Callable
from uuid import uuid4

import pytest
from typer.testing import CliRunner

from kafka_eos.cli import app
from kafka_eos.core.errors import ConfigError
from kafka_eos.devtools.broker import topics


@pytest.fixture
def ask(bootstrap: str) -> Callable[..., list[str]]:
    """Call a command of ``kafka-eos broker`` on the shared broker; return the lines of its output."""

    def call(*arguments: str, given: str = "") -> list[str]:
        done = CliRunner().invoke(app, ["broker", *arguments, "-b", bootstrap], input=given)
        if done.exception is not None:
            raise done.exception
        return done.stdout.splitlines()

    return call


def test_a_topic_is_created_written_read_and_deleted(ask: Callable[..., list[str]]) -> None:
    name = f"by-hand-{uuid4().hex[:8]}"
    ask("topic", "create", name, "--partitions", "2")
    assert f"{name}\t2" in ask("topic", "list")

    ask("produce", name, "--key-separator", ":", given="ann:1\nann:2\n")
    ask("produce", name, "no key", "é")
    read = ask("consume", name, "--from-beginning", "--until-end", "--key-separator", "=")
    assert sorted(read) == sorted(["ann=1", "ann=2", "=no key", "=é"])
    assert len(ask("consume", name, "--from-beginning", "--max", "3")) == 3

    ask("topic", "delete", name)
    assert f"{name}\t2" not in ask("topic", "list")


def test_mistakes_are_named_and_lines_before_one_are_written(
    ask: Callable[..., list[str]], topic: Callable[..., str]
) -> None:
    name = topic()
    with pytest.raises(ConfigError, match="already exists"):
        ask("topic", "create", name)
    with pytest.raises(ConfigError, match="kafka-eos broker topic create missing"):
        ask("produce", "missing", "x")
    with pytest.raises(ConfigError, match="kafka-eos broker topic list"):
        ask("consume", "missing")
    with pytest.raises(ConfigError, match="has no ':'"):
        ask("produce", name, "a:1", "b", "--key-separator", ":")

    assert ask("consume", name, "--from-beginning", "--until-end") == ["1"]


def test_an_address_without_a_broker_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "_SECONDS", 2.0)
    done = CliRunner().invoke(app, ["broker", "topic", "list", "-b", "127.0.0.1:1"])

    assert "127.0.0.1:1" in str(done.exception) and "kafka-eos broker status" in str(done.exception)
