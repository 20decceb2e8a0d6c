"""The parameters of a replay: the pipeline, which of its dead letters are replayed, and the target topic.

Rule: every process of the job reads these parameters from its environment, as it reads the pipeline from a file.
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
from kafka_eos.ops.dead_letters.topics import DeadLetterTopics, find_dead_letter_topics
from kafka_eos.runtime.program import load_program

VARIABLE: Final = "KAFKA_EOS_REPLAY"
PIPELINE: Final = Path(__file__).with_name("replay_pipeline.py")
"""The file that defines the pipeline of a replay."""
OPERATOR: Final = "replayed"
"""The operator whose state has a key for each replayed record. Durable: see ``replay_pipeline``."""
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


class ReplayRequest(Struct, frozen=True, kw_only=True):
    """One call of kafka-eos dead-letters replay."""

    app: str
    """The user's file, ``path`` or ``path:pipeline``."""
    source: str
    job: str
    """Name of the replay's own job."""
    selection: Selection
    to: str | None = None
    """The topic to write to; None for the topic that the records were read from."""
    run: str = ""
    """Identifies this call: each call reads all dead letters, and the job's state has those replayed before."""

    def export_to_environment(self) -> None:
        """Put the request into the environment of this process and its children."""
        os.environ[VARIABLE] = msgspec.json.encode(msgspec.structs.replace(self, run=uuid4().hex[:8])).decode()

    @classmethod
    def from_environment(cls) -> ReplayRequest:
        text = os.environ.get(VARIABLE)
        if not text:
            raise ConfigError("this pipeline replays dead letters: start it with kafka-eos dead-letters replay")
        return msgspec.json.decode(text, type=cls)

    def places(self) -> DeadLetterTopics:
        return find_dead_letter_topics(load_program(AppRef.parse(self.app)).plan(), self.source, self.selection.topic)

    def settings(self) -> dict[str, Any]:
        """Return the pipeline's settings that apply to a replay, and the settings that a replay requires."""
        pipeline_settings = load_program(AppRef.parse(self.app)).code_settings
        return {
            **{name: pipeline_settings[name] for name in _INHERITED if name in pipeline_settings},
            # Records of a partition keep their order.
            "parallelism": 1,
            "checkpoint_mode": "aligned",
            # The source of an earlier call no longer exists. The ids of replayed records are state that remains.
            "allow_dropped_state": True,
            "start_from": None,
            "allow_repeated_output": False,
            "take_over": False,
            "standby": False,
            "http": None,
        }
