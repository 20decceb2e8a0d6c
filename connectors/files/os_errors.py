"""Classification of errors of the operating system.

Rule: they are mapped here, once, to what the caller must do.
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
"""pyarrow's messages about a bucket, which have no error number."""


@contextmanager
def map_errors(kind: type[KafkaEosError], what: str) -> Iterator[None]:
    """Map OSError to the given kind of error."""
    try:
        yield
    except OSError as error:
        raise kind(f"could not {what}: {error}") from error


@contextmanager
def refuse_permanent_errors(needs: str) -> Iterator[None]:
    """Turn a Retryable that waiting cannot resolve into a ConfigError with a remedy."""
    try:
        yield
    except Retryable as error:
        if isinstance(error.__cause__, OSError) and _lasts(error.__cause__):
            raise ConfigError(f"{str(error).rstrip('.')}. {needs}") from error
        raise


def _lasts(error: OSError) -> bool:
    return error.errno in _LASTS or _DENIED.search(str(error)) is not None
