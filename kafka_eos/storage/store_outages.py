"""What an OSError of the checkpoint store means: wait, or tell a person. Rule: nobody else decides this.

It is asked about a store that has answered this run before. If a directory of such a store is missing, it is not
mounted now, and if its disk is full, somebody will make room: the job waits for both. Rights and a read-only file
system do not change by themselves.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

from kafka_eos.core.errors import ConfigError, Retryable

T = TypeVar("T")

_FOR_A_PERSON = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def answered(call: Callable[[], T]) -> T:
    """``call()``'s result; ``call`` only asks the store, so it may be repeated.

    Raises Retryable for an outage, ConfigError for what the user must change, and all else as it is.
    """
    try:
        return call()
    except OSError as error:
        if error.errno in _FOR_A_PERSON:
            raise ConfigError(f"the checkpoint store refuses this job: {error}. Give it back its rights") from error
        raise Retryable(f"the checkpoint store does not answer: {error}") from error
