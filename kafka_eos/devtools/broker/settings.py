"""The settings of a development broker, and the ports it listens on.

Rule: one node, loopback only, everything replicated once; otherwise what the guarantee wants of any broker.
Not for production: ``docker/compose.yaml`` says what changes there.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from kafka_eos.core.errors import ConfigError

# Below 32768, where Linux starts to give ports to outgoing connections: a stopped broker finds its port free again.
_PORT_RANGE = range(20_000, 32_000)
_ATTEMPTS = 200


def server_properties(data: Path, port: int, controller_port: int, overrides: Mapping[str, str]) -> str:
    """Return the text of ``server.properties``; an override replaces a setting of the same name or adds one."""
    settings = {
        "process.roles": "broker,controller",
        "node.id": "1",
        "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
        "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
        "log.dirs": str(data),
        # One node: internal topics cannot have more than one replica.
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "min.insync.replicas": "1",
        # Few partitions: a coordinator loads in milliseconds.
        "offsets.topic.num.partitions": "4",
        "transaction.state.log.num.partitions": "4",
        "num.partitions": "1",
        # A prepared transaction has to outlive a long absence of its job.
        "transaction.max.timeout.ms": "2147483647",
        # A mistyped topic name is an error, not a new topic.
        "auto.create.topics.enable": "false",
        # Quick: no waiting for more members, and after a kill no 9 s until the controller forgets the old process.
        "group.initial.rebalance.delay.ms": "0",
        "broker.session.timeout.ms": "4000",
        "broker.heartbeat.interval.ms": "500",
        "log.index.size.max.bytes": "1048576",
        "log.cleaner.dedupe.buffer.size": "16777216",
    }
    return "".join(f"{name}={value}\n" for name, value in {**settings, **overrides}.items())


def free_ports(count: int) -> list[int]:
    """Return ``count`` different unused TCP ports of 127.0.0.1. Raise ConfigError if there are not as many."""
    with ExitStack() as held:
        ports: list[int] = []
        for _ in range(_ATTEMPTS):
            if len(ports) == count:
                return ports
            port = secrets.choice(_PORT_RANGE)
            if port not in ports and _bind(held.enter_context(socket.socket()), port):
                ports.append(port)
    raise ConfigError(f"no {count} free ports between {_PORT_RANGE.start} and {_PORT_RANGE.stop}; choose one: --port N")


def is_free(port: int) -> bool:
    """Return whether a server could listen on 127.0.0.1:``port`` now."""
    with socket.socket() as probe:
        return _bind(probe, port)


def _bind(probe: socket.socket, port: int) -> bool:
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as Java does: old connections may still linger
    try:
        probe.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True
