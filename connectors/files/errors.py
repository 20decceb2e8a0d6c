"""What errors of the operating system mean to a caller.

Rule: mapped here, once, to what the caller must do.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kafka_eos.errors import KafkaEosError


@contextmanager
def mapped(kind: type[KafkaEosError], what: str) -> Iterator[None]:
    """``kind`` for an error of the operating system, or of a client that tells its errors as such."""
    try:
        yield
    except OSError as error:
        raise kind(f"could not {what}: {error}") from error
