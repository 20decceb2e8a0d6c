"""What errors of the operating system mean to a caller.

Rule: mapped here, once, to what the caller must do.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kafka_eos.core.errors import ConfigError, KafkaEosError, Retryable

_LASTS: Final = frozenset({
    errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ELOOP,
    errno.ENAMETOOLONG,
})  # fmt: skip
_DENIED: Final = re.compile(
    "AWS Error (ACCESS_DENIED|INVALID_ACCESS_KEY_ID|SIGNATURE_DOES_NOT_MATCH|INVALID_CLIENT_TOKEN_ID|NO_SUCH_BUCKET)"
)
"""What pyarrow says of a bucket, without a number."""


@contextmanager
def mapped(kind: type[KafkaEosError], what: str) -> Iterator[None]:
    """``kind`` for an error of the operating system, or of a client that tells its errors as such."""
    try:
        yield
    except OSError as error:
        raise kind(f"could not {what}: {error}") from error


@contextmanager
def expecting(needs: str) -> Iterator[None]:
    """Around a try of a place at a start: ConfigError, with what is needed, for a Retryable that no waiting mends."""
    try:
        yield
    except Retryable as error:
        if isinstance(error.__cause__, OSError) and _lasts(error.__cause__):
            raise ConfigError(f"{str(error).rstrip('.')}. {needs}") from error
        raise


def _lasts(error: OSError) -> bool:
    return error.errno in _LASTS or _DENIED.search(str(error)) is not None
