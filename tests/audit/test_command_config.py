"""Settings of Java's client, from a file as Kafka's own tools read it: how the audit of topics connects with them."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kafka_eos.audit import Check, Conclusion
from kafka_eos.audit.cluster.java_client_config import ClusterAccess, secrets_of
from kafka_eos.audit.topics import TopicAuditOptions, audit_topics
from tests.audit.job import Job, Out
from tests.chaos.harness import create_topic
from tests.secured import PASSWORD, Secured

pytestmark = pytest.mark.timeout(300)
LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required"


def test_a_file_has_the_settings_that_decide_how_a_client_connects(tmp_path: Path, spark: Any) -> None:
    """What only tunes a client, or names another cluster, is left out; secrets are known, so messages hide them."""
    file = tmp_path / "client.properties"
    file.write_text(
        "# of all tools\nbootstrap.servers=other:9092\nacks = 1\nsecurity.protocol : SASL_SSL\n"
        f'sasl.jaas.config={LOGIN} \\\n    username="app" password="{PASSWORD}";\n'
        "ssl.truststore.password=caf\\u00e9\n"
    )

    java = ClusterAccess("broker:9092", {}, file).java(spark)

    assert java == {
        "bootstrap.servers": "broker:9092",
        "security.protocol": "SASL_SSL",
        "sasl.jaas.config": f'{LOGIN} username="app" password="{PASSWORD}";',
        "ssl.truststore.password": "café",
    }
    assert {PASSWORD, "café"} == {*secrets_of(java)}


@pytest.mark.campaign
@pytest.mark.xdist_group("secured")
def test_a_trust_store_and_a_login_of_java_reach_a_secured_cluster(
    secured: Secured, spark: Any, tmp_path: Path
) -> None:
    store, file = tmp_path / "trust.jks", tmp_path / "client.properties"
    created = ["keytool", "-importcert", "-noprompt", "-storetype", "JKS", "-storepass", "changeit", "-keystore"]
    subprocess.run([*created, store, "-file", secured.authority], check=True, capture_output=True)
    file.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\n"
        f'sasl.jaas.config={LOGIN} username="app" password="{PASSWORD}";\n'
        f"ssl.truststore.location={store}\nssl.truststore.type=JKS\nssl.truststore.password=changeit\n"
    )
    job = Job(secured.open, tmp_path, tmp_path / "none.py", "secured")
    topics = [f"java-{role}-{tmp_path.name}" for role in ("in", "out")]
    for name in topics:
        create_topic(secured.open, name, 1)
    rows = [Out(None, b'{"id":%d}' % n, None) for n in range(5)]
    job.write_all({topics[0]: rows, topics[1]: rows[1:]})
    question = TopicAuditOptions(secured.addresses["BOTH"], (topics[0],), (topics[1],), id="$.id", command_config=file)

    verdict = audit_topics(question, spark=spark)
    file.write_text(file.read_text().replace(PASSWORD, "wrong"))
    refused = audit_topics(replace(question), spark=spark, settle_seconds=1)

    assert {Check.LOST: 1} == {finding.check: finding.count for finding in verdict.findings}, verdict.headline
    assert Conclusion.INCONCLUSIVE is refused.conclusion
    assert "wrong" not in refused.headline.replace("went wrong", "")
