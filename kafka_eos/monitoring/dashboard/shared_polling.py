"""Polling shared by open pages: however many pages show one thing, it is read once per second.

Rule: nothing is read while no page is open, the number of open pages is bounded, and a slow page delays no other page.
All of it runs on the server's event loop.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from kafka_eos.core.json_values import Json

_LOG: Final = logging.getLogger("kafka_eos.http")
_EVERY: Final = 1.0
"""Seconds between two looks."""
_SILENCE: Final = 10
"""Looks without news after which a page is shown that the server still runs."""
_PAGES: Final = 64
_AGAIN: Final = 5
"""Seconds after which a page that was refused may ask again."""


class Poller:
    """Poll a subject once a second and publish its JSON to subscribers."""

    def __init__(self, what: str, look: Callable[[], Json]) -> None:
        self._what, self._look = what, look
        self._text = ""
        self._looked = asyncio.Event()
        """Set by the next look, which puts another one here."""
        self.subscribers = 0
        self.over = False
        self._task = asyncio.create_task(self._keep_looking())

    def end(self) -> None:
        """End the streams of this polling."""
        self._task.cancel()
        self._wake(over=True)

    async def events(self) -> AsyncIterator[str]:
        """Yield the newest result of polling whenever it differs from the last one that was sent."""
        last_sent, silent = "", 0
        while True:
            if self._text != last_sent:
                last_sent, silent = self._text, 0
                yield f"data: {last_sent}\n\n"
            elif self.over:
                return
            elif silent >= _SILENCE:
                silent = 0
                yield ": nothing new\n\n"
            else:
                await self._looked.wait()
                silent += 1

    async def _keep_looking(self) -> None:
        try:
            while True:
                self._text = await run_in_threadpool(lambda: json.dumps(self._look()))
                self._wake()
                await asyncio.sleep(_EVERY)
        except Exception:  # noqa: BLE001 - it ends the streams, and the pages ask again
            _LOG.exception("%s cannot be shown", self._what)
            self._wake(over=True)

    def _wake(self, *, over: bool = False) -> None:
        self.over = self.over or over
        self._looked.set()
        self._looked = asyncio.Event()


class EventStreams:
    """All pollers of a server, and a bound on their subscribers. ``pages``: how many may follow at the same time."""

    def __init__(self, pages: int = _PAGES) -> None:
        self._room = self._pages = pages
        self._looks: dict[str, Poller] = {}
        self._over = False

    def stream(self, what: str, look: Callable[[], Json]) -> StreamingResponse:
        """Return server-sent events of ``what``. ``look`` is called on threads, and only if no other page polls it."""
        return _EventStream(self, what, look)

    def end(self) -> None:
        """End all streams, and refuse new ones."""
        self._over = True
        for look in self._looks.values():
            look.end()

    @contextmanager
    def subscribe(self, what: str, look: Callable[[], Json]) -> Iterator[Poller]:
        """Subscribe to a poller, starting it if needed; HTTPException if too many are open."""
        if self._over:
            raise HTTPException(503, "the dashboard ends", {"Retry-After": str(_AGAIN)})
        if not self._room:
            full = f"{self._pages} dashboard pages are open, the most it serves: close some"
            raise HTTPException(503, full, {"Retry-After": str(_AGAIN)})
        followed = self._looks.get(what)
        if followed is None or followed.over:
            followed = self._looks[what] = Poller(what, look)
        self._room -= 1
        followed.subscribers += 1
        try:
            yield followed
        finally:
            self._room += 1
            followed.subscribers -= 1
            if not followed.subscribers:
                followed.end()
                if self._looks.get(what) is followed:
                    del self._looks[what]


class _EventStream(StreamingResponse):
    """A streaming response that subscribes from its first byte to its last."""

    def __init__(self, looks: EventStreams, what: str, look: Callable[[], Json]) -> None:
        super().__init__((), media_type="text/event-stream")
        self._looks = looks
        self._what = what
        self._look = look

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._looks.subscribe(self._what, self._look) as followed:
            self.body_iterator = followed.events()
            await super().__call__(scope, receive, send)
