"""Where a cluster is and how to talk to it: the user's librdkafka settings, checked, named and masked.

Pure. Rule: a setting that the delivery guarantee depends on cannot be overridden; it is refused by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kafka_eos.errors import ConfigError
from kafka_eos.interfaces import JobContext, Json

MASK = "********"
_SECRET = re.compile(
    r"password|passwd|secret|token|credential|jaas|private|\.pem|\.key\b|oauth.*config|_cb$", re.IGNORECASE
)

_OURS = {
    "bootstrap.servers": "pass bootstrap_servers=… instead",
    "metadata.broker.list": "pass bootstrap_servers=… instead",
    "transactional.id": "the sink names its own transactions, so that a later process can finish them",
    "transaction.timeout.ms": "pass transaction_timeout=… instead",
    "enable.idempotence": "the delivery guarantee needs it on",
    "acks": "the delivery guarantee needs acks=all",
    "request.required.acks": "the delivery guarantee needs acks=all",
    "delivery.report.only.error": "the sink proves delivery through it",
    "on_delivery": "the sink proves delivery through it",
    "stats_cb": "the sink learns the producer's identity through it",
    "statistics.interval.ms": "the sink learns the producer's identity through it",
    "isolation.level": "a source reads committed records only",
    "check.crcs": "damaged records must not pass for good ones",
    "auto.offset.reset": "where to start is start=…; later the checkpoint decides",
    "enable.auto.commit": "the checkpoint is the truth, not the group's offsets",
    "enable.auto.offset.store": "the checkpoint is the truth, not the group's offsets",
    "enable.partition.eof": "the source finds the end of a partition through it",
    "group.id": "pass group_id=… to the source instead",
}


@dataclass(frozen=True)
class Cluster:
    """One Kafka cluster as one user sees it. ``config`` is librdkafka's, without ``bootstrap.servers``."""

    bootstrap: str
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def scope(self) -> str:
        """The name of this cluster and user in a manifest: stable while secrets and tuning change."""
        user = self.config.get("sasl.username", self.config.get("sasl.kerberos.principal"))
        return f"kafka://{user}@{self.bootstrap}" if user else f"kafka://{self.bootstrap}"

    @property
    def fingerprint(self) -> str:
        """Tells two client configurations apart; reveals nothing of them."""
        text = repr(sorted((key, repr(value)) for key, value in self.config.items()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def client(self, defaults: Mapping[str, Any], forced: Mapping[str, Any]) -> dict[str, Any]:
        """A librdkafka configuration: ``defaults``, then the user's, then what must not be changed."""
        # A client that rebootstraps when its only broker is gone was seen to hang in a transactional call.
        # The client's own longest pause between attempts to reconnect, 10 s, would prolong every short outage.
        base = {"metadata.recovery.strategy": "none", "reconnect.backoff.max.ms": 1000, "log_level": 3}
        return {**base, **defaults, **self.config, "bootstrap.servers": self.bootstrap, **forced}


def cluster(servers: str | None, config: Mapping[str, Any], ctx: JobContext) -> Cluster:
    """Resolve the bootstrap servers: the argument, else the job's setting; ConfigError if there are none."""
    found = servers or ctx.settings.get("bootstrap_servers")
    if not isinstance(found, str) or not found.strip():
        raise ConfigError(
            'no Kafka cluster given: pass bootstrap_servers="host:port" to the connector, '
            "or set it for the whole job (KAFKA_EOS_BOOTSTRAP_SERVERS)."
        )
    return Cluster(",".join(sorted(part.strip() for part in found.split(",") if part.strip())), dict(config))


def checked(config: Mapping[str, Any] | None) -> dict[str, Any]:
    """A copy of the user's configuration. ConfigError for a key that a guarantee depends on."""
    for key in config or {}:
        if key in _OURS:
            raise ConfigError(f"config[{key!r}] cannot be set: {_OURS[key]}.")
    return dict(config or {})


def masked(config: Mapping[str, Any]) -> dict[str, Json]:
    """The configuration for people: secrets and callbacks hidden."""
    return {key: MASK if _SECRET.search(key) or callable(value) else str(value) for key, value in config.items()}
