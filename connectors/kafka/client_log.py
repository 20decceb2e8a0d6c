"""What librdkafka says by itself: through Python's logging, and not the same thing again and again.

While a broker is away, each client says so at each attempt to connect, several times a second. What differs only in
numbers from what was said a moment ago is counted, and told with the next one.

Rule: whoever polls a client gives it ``SPOKEN``; lines of one that nobody polls would stay in its memory, so such a
client is given ``SILENT``. Its calls raise what is wrong.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

LOGGER: Final = logging.getLogger("kafka_eos.rdkafka")
SPOKEN: Final[dict[str, Any]] = {"log_level": 3, "logger": LOGGER}
SILENT: Final[dict[str, Any]] = {"log_level": 0}
"""Nothing but that the system cannot be used."""
QUIET_SECONDS: Final = 30.0
_MOST = 1000
"""Kinds of lines that are remembered."""
_LINE = re.compile(r"(?P<what>[A-Z_]+) \[rdkafka#(?P<client>[^\]]+)\] (?:\[thrd:[^\]]*\]: )?(?P<text>.*)", re.DOTALL)
_NUMBER = re.compile(r"\d+")


@dataclass
class _Kind:
    """Lines that differ in numbers alone: when one was let through, and how many were not since."""

    at: float
    kept_back: int = 0


class Seldom(logging.Filter):
    """Lets the first line of a kind through, and one after ``QUIET_SECONDS`` that counts those in between."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock, self._lock = clock, threading.Lock()
        self._kinds: dict[str, _Kind] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        text, now = record.getMessage(), self._clock()
        line = _LINE.match(text)
        said = text if line is None else line["text"]
        with self._lock:
            kind = self._kinds.get(key := _NUMBER.sub("#", said))
            if kind is not None and now - kind.at < QUIET_SECONDS:
                kind.kept_back += 1
                return False
            if kind is None and len(self._kinds) >= _MOST:
                self._kinds.clear()
            self._kinds[key] = _Kind(now)
        again = f" ({kind.kept_back} more in the last {now - kind.at:.0f} s)" if kind and kind.kept_back else ""
        client = "" if line is None else f"Kafka client {line['client']}: "
        record.msg, record.args = f"{client}{said}{again}", ()
        return True


LOGGER.addFilter(Seldom())
