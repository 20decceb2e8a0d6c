"""What librdkafka says by itself: through Python's logging, and not the same thing again and again.

While a broker is away, each client says so at each attempt to connect, several times a second.

Rule: whoever polls a client gives it ``SPOKEN``; lines of one that nobody polls would stay in its memory, so such a
client is given ``SILENT``. Its calls raise what is wrong.
"""

from __future__ import annotations

import logging
import re
from typing import Any, Final

from kafka_eos._util.logging_setup import Seldom

LOGGER: Final = logging.getLogger("kafka_eos.rdkafka")
SPOKEN: Final[dict[str, Any]] = {"log_level": 3, "logger": LOGGER}
SILENT: Final[dict[str, Any]] = {"log_level": 0}
"""Nothing but that the system cannot be used."""
_LINE = re.compile(r"(?P<what>[A-Z_]+) \[rdkafka#(?P<client>[^\]]+)\] (?:\[thrd:[^\]]*\]: )?(?P<text>.*)", re.DOTALL)


def read(text: str) -> tuple[str, str]:
    """Which client says it, and what."""
    line = _LINE.match(text)
    return ("", text) if line is None else (f"Kafka client {line['client']}: ", line["text"])


LOGGER.addFilter(Seldom(read=read))
