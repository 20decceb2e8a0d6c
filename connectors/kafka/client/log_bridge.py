"""librdkafka's log lines, passed to Python's logging without repetition.

While a broker is down, each client logs each attempt to connect, several times a second.
Rule: a client that is polled gets ``SPOKEN``. Lines of a client that is not polled would accumulate in its memory, so
it gets ``SILENT``; its calls raise errors.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from kafka_eos._util.logging_setup import RepeatFilter

LOGGER: Final = logging.getLogger("kafka_eos.rdkafka")
SPOKEN: Final[dict[str, Any]] = {"log_level": 3, "logger": LOGGER}
SILENT: Final[dict[str, Any]] = {"log_level": 0}
"""Log only emergencies."""
_LINE = re.compile(r"(?P<what>[A-Z_]+) \[rdkafka#(?P<client>[^\]]+)\] (?:\[thrd:[^\]]*\]: )?(?P<text>.*)", re.DOTALL)


def read(text: str) -> tuple[str, str]:
    """Return the client that wrote a log line, and its text."""
    line = _LINE.match(text)
    return ("", text) if line is None else (f"Kafka client {line['client']}: ", line["text"])


LOGGER.addFilter(RepeatFilter(read=read))
