"""The session for requests to collectors and data catalogs, of whose responses only the status counts.

Rule: such a server decides neither how much memory a job takes nor where else its requests go. So a body is read up to
a limit and never decompressed, and no redirect is followed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import requests
from urllib3.exceptions import HTTPError

_MOST_BYTES: Final = 65_536
"""A longer body is not read to its end: the connection is closed, not reused."""


class StatusSession(requests.Session):
    """A session that reads the status of a response and drops its body."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = True  # otherwise a body is read, whatever its size
        self.hooks["response"].append(_drop_body)

    def resolve_redirects(  # type: ignore[override]  # the base class passes all but two by name
        self, resp: requests.Response, *args: Any, yield_requests: bool = False, **kwargs: Any
    ) -> Iterator[requests.Response]:
        """Raise TooManyRedirects where a redirect would be followed."""
        if resp.is_redirect and not yield_requests:
            raise requests.TooManyRedirects("the server redirects to another address: use that one")
        return iter(())


def _drop_body(response: requests.Response, *args: Any, **kwargs: Any) -> None:
    with suppress(HTTPError, OSError):
        if len(response.raw.read(_MOST_BYTES, decode_content=False)) < _MOST_BYTES:
            return
    response.close()
