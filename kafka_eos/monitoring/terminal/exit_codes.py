"""How a run from the shell ends: an error becomes one paragraph and an exit code.

Rule: the same for ``kafka-eos run orders.py`` and ``python orders.py``. Only our own errors are explained.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kafka_eos.core.errors import KafkaEosError, UserError

EXIT_FATAL, EXIT_USER, EXIT_INTERRUPTED, EXIT_ALL_REFUSED = 1, 2, 3, 4


@contextmanager
def explained() -> Iterator[None]:
    """End the process with what ``exit_code`` says if one of our errors comes out of the block."""
    try:
        yield
    except KafkaEosError as error:
        # Here, because whoever only asks for help waits for neither.
        from kafka_eos.core.failure_causes import kind_of
        from kafka_eos.monitoring.terminal.live_view import say

        say((kind_of(error), "bold red"), f": {error}", level=logging.ERROR)
        sys.exit(exit_code(error))


def exit_code(error: KafkaEosError) -> int:
    """1 fatal, 2 for the user to change, 3 stopped before the last commit."""
    from kafka_eos._util.retry import Interrupted

    if isinstance(error, UserError):
        return EXIT_USER
    return EXIT_INTERRUPTED if isinstance(error, Interrupted) else EXIT_FATAL
