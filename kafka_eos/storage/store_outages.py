"""Classification of an OSError of the checkpoint store: wait, or report it. Rule: only this module decides this.

It handles errors of a store that has responded to this run before. If a directory of such a store is missing, it is not
mounted now; if its disk is full, space will be freed. The job waits in both cases. Missing permissions and a read-only
file system do not change by themselves.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

from kafka_eos.core.errors import ConfigError, Retryable

T = TypeVar("T")

_FOR_A_PERSON = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})


def call_store(call: Callable[[], T]) -> T:
    """Call the store. Raise Retryable for an outage and ConfigError for missing permissions.

    All other errors propagate unchanged.
    """
    try:
        return call()
    except OSError as error:
        if error.errno in _FOR_A_PERSON:
            raise ConfigError(
                f"the checkpoint store refuses this job: {error}. Restore the job's permissions"
            ) from error
        raise Retryable(f"the checkpoint store does not respond: {error}") from error
