"""The rules for a clock that runs faster are those that are shipped, with other times alone."""

from __future__ import annotations

import yaml

from tests.monitoring.prometheus import RULES, faster


def test_only_times_are_other() -> None:
    shipped = yaml.safe_load(RULES.read_text())
    rules = {rule["alert"]: rule for rule in faster(shipped, 6)["groups"][0]["rules"]}

    assert len(rules) == len(shipped["groups"][0]["rules"])
    assert rules["KafkaEosDown"]["for"] == "20000ms"
    assert rules["KafkaEosCheckpointLate"]["expr"] == "kafka_eos_checkpoint_pending_seconds > 10"
    assert "[100000ms]" in rules["KafkaEosRestartLoop"]["expr"]
    assert "offset 100000ms" in rules["KafkaEosDeadLetters"]["expr"]
    assert "kafka_eos_lag_records > 10000" in rules["KafkaEosLagGrows"]["expr"]
    assert faster(shipped, 1)["groups"][0]["rules"][2]["expr"] == shipped["groups"][0]["rules"][2]["expr"]
