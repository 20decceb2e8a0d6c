"""The address of a cluster and its client settings: the user's librdkafka settings, checked, named and masked.

Pure. Rule: a setting that the delivery guarantee depends on cannot be overridden; it is refused by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from kafka_eos.abc.context import JobContext
from kafka_eos.abc.dataset import Dataset
from kafka_eos.connectors.kafka.client.credentials import resolve_config
from kafka_eos.core.errors import ConfigError

_OURS = {
    "bootstrap.servers": "pass bootstrap_servers=… instead",
    "metadata.broker.list": "pass bootstrap_servers=… instead",
    "transactional.id": "the sink names its own transactions, so that a later process can finish them",
    "transaction.timeout.ms": "pass transaction_timeout=… instead",
    "enable.idempotence": "the delivery guarantee needs it enabled",
    "acks": "the delivery guarantee needs acks=all",
    "request.required.acks": "the delivery guarantee needs acks=all",
    "delivery.report.only.error": "the sink proves delivery through it",
    "on_delivery": "the sink proves delivery through it",
    "stats_cb": "the sink learns the producer's identity through it",
    "statistics.interval.ms": "the sink learns the producer's identity through it",
    "isolation.level": "a source reads committed records only",
    "check.crcs": "damaged records must be detected",
    "auto.offset.reset": "start=… sets the first position; later ones come from the checkpoint",
    "enable.auto.commit": "positions are read from the checkpoint, not from the group's offsets",
    "enable.auto.offset.store": "positions are read from the checkpoint, not from the group's offsets",
    "enable.partition.eof": "the source finds the end of a partition through it",
    "group.id": "pass group_id=… to the source instead",
}


SCHEME: Final = "kafka://"
"""The prefix of the scope of every Kafka sink."""


@dataclass(frozen=True)
class Cluster:
    """One Kafka cluster as one user sees it.

    ``config`` are librdkafka's settings, without ``bootstrap.servers``. Secrets may be in files, and tokens may be
    requested (see ``credentials``).
    """

    bootstrap: str
    config: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def scope(self) -> str:
        """Return the name of this cluster and user in a manifest, which does not depend on secrets and tuning.

        Different bootstrap servers may lead to the same cluster: only its id identifies it.
        """
        user = self.config.get("sasl.username", self.config.get("sasl.kerberos.principal"))
        return f"{SCHEME}{user}@{self.bootstrap}" if user else f"{SCHEME}{self.bootstrap}"

    def name_dataset(self, topic: str) -> Dataset:
        """Return a topic as data catalogs name it."""
        return Dataset(f"kafka://{self.bootstrap.split(',')[0]}", topic)

    @property
    def named(self) -> str:
        """Return the user's name for Kafka's ACLs; a placeholder if the settings do not contain it."""
        user = self.config.get("sasl.username", self.config.get("sasl.kerberos.principal"))
        return f"User:{user}" if user else "User:NAME"

    @property
    def principal(self) -> str:
        """Return the identity of this client on the cluster, for messages."""
        if self.named != "User:NAME":
            return f"the user {self.named}"
        mechanism = str(self.config.get("sasl.mechanisms", self.config.get("sasl.mechanism", ""))).upper()
        if mechanism == "OAUTHBEARER":
            return "the user of the token"
        if certificate := self.config.get("ssl.certificate.location"):
            return f"the user of the certificate {certificate}"
        return "a client without a login"

    def current(self) -> dict[str, Any]:
        """Return the user's settings with the present secrets. Raise Retryable if one cannot be read."""
        return resolve_config(self.config)

    @property
    def fingerprint(self) -> str:
        """Return a digest of the client configuration, which reveals nothing of it."""
        text = repr(sorted((key, repr(value)) for key, value in self.config.items()))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def build_client_config(self, defaults: Mapping[str, Any], forced: Mapping[str, Any]) -> dict[str, Any]:
        """Return the librdkafka configuration of one client.

        It contains the present secrets: use it for one client, and do not keep it. Raises Retryable if a secret cannot
        be read.
        """
        # A client that rebootstraps when its only broker is down was seen to hang in a transactional call.
        # The client's own longest pause between attempts to reconnect, 10 s, would prolong every short outage.
        base = {"metadata.recovery.strategy": "none", "reconnect.backoff.max.ms": 1000}
        return {**base, **defaults, **self.current(), "bootstrap.servers": self.bootstrap, **forced}


def resolve_cluster(servers: str | None, config: Mapping[str, Any], ctx: JobContext) -> Cluster:
    """Return the cluster from the connector's arguments and the job's settings.

    Raises ConfigError if there are no bootstrap servers, or if the job's ``kafka_config`` has a setting that the
    guarantee depends on.
    """
    found = servers or ctx.settings.get("bootstrap_servers")
    if not isinstance(found, str) or not found.strip():
        raise ConfigError(
            'no Kafka cluster given: pass bootstrap_servers="host:port" to the connector, '
            "or set it for the whole job (KAFKA_EOS_BOOTSTRAP_SERVERS)."
        )
    return Cluster(
        ",".join(sorted(part.strip() for part in found.split(",") if part.strip())), {**_of_job(ctx), **config}
    )


def _of_job(ctx: JobContext) -> dict[str, Any]:
    given = ctx.settings.get("kafka_config")
    return checked(given, "kafka_config") if isinstance(given, Mapping) else {}


def checked(config: Mapping[str, Any] | None, where: str = "config") -> dict[str, Any]:
    """Return a copy of the user's configuration. Raise ConfigError for a key that the guarantee depends on.

    ``where``: the name of the argument, for the message.
    """
    for key in config or {}:
        if key in _OURS:
            raise ConfigError(f"{where}[{key!r}] cannot be set: {_OURS[key]}.")
    return dict(config or {})
