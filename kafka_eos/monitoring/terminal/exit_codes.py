"""The end of a run from the shell: an error becomes one paragraph and an exit code.

Rule: the same for ``kafka-eos run orders.py`` and ``python orders.py``. Only kafka_eos's own errors are explained.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from kafka_eos.core.errors import KafkaEosError, UserError

EXIT_FATAL, EXIT_USER, EXIT_INTERRUPTED, EXIT_ONLY_DEAD_LETTERS = 1, 2, 3, 4


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Print a KafkaEosError as one paragraph and exit with its code."""
    try:
        yield
    except KafkaEosError as error:
        # Imported here, so that --help does not wait for it.
        from kafka_eos.core.failure_causes import error_name
        from kafka_eos.monitoring.terminal.live_view import print_message

        print_message((error_name(error), "bold red"), f": {error}", level=logging.ERROR)
        sys.exit(exit_code(error))


def exit_code(error: KafkaEosError) -> int:
    """Return 1 for a fatal error, 2 for an error that the user must fix, 3 if stopped before the last commit."""
    from kafka_eos._util.retry import RetryInterrupted

    if isinstance(error, UserError):
        return EXIT_USER
    return EXIT_INTERRUPTED if isinstance(error, RetryInterrupted) else EXIT_FATAL
