"""What a session refuses before it begins: rows under way that no way of the plan leads on.

Rule: a refusal says what to change in the pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kafka_eos.errors import PlanError
from kafka_eos.exchange import in_flight
from kafka_eos.interfaces import InFlight, ListCodec


def check_rows(part: InFlight, wires: Mapping[str, ListCodec[Any]]) -> None:
    """Refuse rows under way that the plan has no way for. PlanError, or ConfigError for another codec."""
    if part.exchange not in wires:
        raise PlanError(
            f"the checkpoint holds rows on their way through {part.exchange!r}, but the pipeline has no exchange of "
            "that name. Run the old version until it has stopped with a savepoint, which holds no such rows."
        )
    in_flight.check_codec(part, wires[part.exchange])
