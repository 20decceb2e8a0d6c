"""What a replay is told: the pipeline whose records it puts back, which of them, and where.

Rule: every process of the job reads it from its environment, as it reads the pipeline from a file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

import msgspec
from msgspec import Struct

from kafka_eos.core.errors import ConfigError
from kafka_eos.core.ids import AppRef
from kafka_eos.ops.dead_letters.selection import Selection
from kafka_eos.ops.dead_letters.topics import Places, places
from kafka_eos.runtime.program import load

VARIABLE: Final = "KAFKA_EOS_REPLAY"
PIPELINE: Final = Path(__file__).with_name("replay_pipeline.py")
"""The file that makes the pipeline of an order."""
OPERATOR: Final = "restored"
"""Its operator whose state has a key for each record that was put back. Durable: see ``replayed``."""
_INHERITED: Final = (
    "bootstrap_servers",
    "checkpoint_dir",
    "checkpoint_interval",
    "kafka_config",
    "log_format",
    "log_level",
    "state_backend",
)
"""Settings in the pipeline's code that hold for its replay too."""


class Order(Struct, frozen=True, kw_only=True):
    """One call of ``kafka-eos dead-letters replay``."""

    app: str
    """The user's file, ``path`` or ``path:pipeline``."""
    source: str
    job: str
    """Name of the replay's own job."""
    selection: Selection
    to: str | None = None
    """The topic to write to; None is the one that the records came from."""
    run: str = ""
    """Tells this call from all others: each reads all letters, and the job's state knows what was put back before."""

    def announce(self) -> None:
        """Have this process, and those that it starts, find it."""
        os.environ[VARIABLE] = msgspec.json.encode(msgspec.structs.replace(self, run=uuid4().hex[:8])).decode()

    @classmethod
    def given(cls) -> Order:
        text = os.environ.get(VARIABLE)
        if not text:
            raise ConfigError("this pipeline puts dead letters back: start it with kafka-eos dead-letters replay")
        return msgspec.json.decode(text, type=cls)

    def places(self) -> Places:
        return places(load(AppRef.parse(self.app)).plan(), self.source, self.selection.topic)

    def settings(self) -> dict[str, Any]:
        """Those of the pipeline as far as they are of use, and what a replay rests on."""
        theirs = load(AppRef.parse(self.app)).code_settings
        return {
            **{name: theirs[name] for name in _INHERITED if name in theirs},
            # Records of a partition keep their order.
            "parallelism": 1,
            "checkpoint_mode": "aligned",
            # The source of an earlier call is gone. What was put back is the state of an operator that is always there.
            "allow_dropped_state": True,
            "start_from": None,
            "take_over": False,
            "standby": False,
            "http": None,
        }
