"""What is in the first few records that a run has sent aside: a file of the job's directory, for its dashboard.

Rule: the contents of records are in no event, because those are logged, and served to whoever asks. The file is its
owner's alone. Like all that only shows a job it is not durable, and the job goes on without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from kafka_eos.core.records import Refusal
from kafka_eos.storage import object_names as paths

Refused = Mapping[str, Sequence[Refusal]]
"""By source."""
_decoder = msgspec.json.Decoder(dict[str, list[Refusal]])


class RefusedFile:
    """Of one run, which begins without any. ``notice`` is told, once, that the file cannot be written."""

    def __init__(self, directory: Path, notice: Callable[[str], None]) -> None:
        self._path, self._notice, self._failing = directory / paths.REFUSED, notice, False

    def begin(self) -> None:
        """Those of the run before are none of this one."""
        self._path.unlink(missing_ok=True)

    def write(self, refused: Refused) -> None:
        """Replace what is there."""
        staged = self._path.with_suffix(".tmp")
        try:
            with open(os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
                file.write(msgspec.json.encode(refused))
            staged.replace(self._path)
        except OSError as error:
            if not self._failing:
                self._notice(f"{self._path} cannot be written: {error}. The dashboard does not show what was refused")
            self._failing = True
        else:
            self._failing = False


def read_refused(directory: Path) -> Refused:
    """What the newest run has written; nothing if it refused nothing. OSError, or ValueError if it is damaged."""
    try:
        return _decoder.decode((directory / paths.REFUSED).read_bytes())
    except FileNotFoundError:
        return {}
    except msgspec.DecodeError as error:
        raise ValueError(f"{paths.REFUSED} is damaged: {error}") from error
