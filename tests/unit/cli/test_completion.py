"""What a shell completes: commands, and the options of a command that is imported only when it is called."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("kafka-eos sav", {"savepoint"}),
        ("kafka-eos savepoint tr", {"trigger"}),
        ("kafka-eos run --stand", {"--standby"}),
    ],
)
def test_commands_and_options_are_completed(words: str, offered: set[str]) -> None:
    asked = {"_KAFKA_EOS_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-c", "import sys; sys.argv = ['kafka-eos']; from kafka_eos.cli import main; main()"]

    done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True, check=False)

    assert {*done.stdout.split()} == offered, done.stderr
