"""A TCP proxy before a broker that answers for metadata, when asked to, as a broker does that was just started: no
broker is there, and no partition has a leader.

A real one answers so for some milliseconds, after it listens and before the controller lets it in. librdkafka then
forgets the only broker it knows, and may never ask again (confluentinc/librdkafka#5301).
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import TracebackType
from typing import Any, Self, TypeVar

from kio.schema.errors import ErrorCode
from kio.schema.types import BrokerId

from tests.wire import METADATA, answer_of, framed, with_length

_NOBODY = BrokerId(-1)
_SECONDS = 10.0

T = TypeVar("T")


class ForgetfulProxy:
    """Listens on ``port`` of 127.0.0.1 and passes everything on to ``upstream``, but what ``forgetful`` replaces."""

    def __init__(self, port: int, upstream: int) -> None:
        self._port, self._upstream = port, upstream
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[Any]] = set()
        self.forgetful = False
        """Whether answers about metadata name no broker now."""
        self.forgot = 0
        """Answers that named none."""

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._run(self._listen())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._run(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def disconnect(self) -> None:
        """Close every connection: clients connect again, and ask for metadata."""
        self._run(self._disconnect())

    def _run(self, what: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(_SECONDS)

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", self._port)

    def _accept(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(client, to_client))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _disconnect(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _end(self) -> None:
        """No connection is taken any more, and none is left behind: each ends by itself once it is aborted."""
        self._server.close()
        while self._serving:
            await self._disconnect()
            await asyncio.wait(self._serving, timeout=0.1)

    async def _serve(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with self._held(to_client):
            try:
                broker, to_broker = await asyncio.open_connection("127.0.0.1", self._upstream)
            except ConnectionError:
                return  # as if nobody listened
            with self._held(to_broker):
                await self._pass_on(client, to_client, broker, to_broker)

    @contextmanager
    def _held(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.remove(writer)
            writer.close()

    async def _pass_on(
        self,
        client: asyncio.StreamReader,
        to_client: asyncio.StreamWriter,
        broker: asyncio.StreamReader,
        to_broker: asyncio.StreamWriter,
    ) -> None:
        asked: dict[int, int] = {}
        try:
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._requests(client, to_broker, asked))
                ways.create_task(self._answers(broker, to_client, asked))
        except* (asyncio.IncompleteReadError, ConnectionError):
            pass  # one side has gone, and so does the other

    async def _requests(self, client: asyncio.StreamReader, to: asyncio.StreamWriter, asked: dict[int, int]) -> None:
        """Pass on requests; ``asked`` takes the version of each about metadata, by its correlation id."""
        while True:
            frame = await _frame(client)
            key, version, correlation = struct.unpack_from(">hhi", frame)
            if key == METADATA:
                asked[correlation] = version
            to.write(with_length(frame))

    async def _answers(self, broker: asyncio.StreamReader, to: asyncio.StreamWriter, asked: dict[int, int]) -> None:
        while True:
            frame = await _frame(broker)
            (correlation,) = struct.unpack_from(">i", frame)
            version = asked.pop(correlation, None)
            if version is not None and self.forgetful:
                self.forgot += 1
                to.write(framed(_nobody(answer_of(frame, METADATA, version)), correlation))
            else:
                to.write(with_length(frame))


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """The next frame without its length."""
    (length,) = struct.unpack(">i", await reader.readexactly(4))
    return await reader.readexactly(length)


def _nobody(answer: Any) -> Any:
    def led(partition: Any) -> Any:
        return replace(partition, error_code=ErrorCode.leader_not_available, leader_id=_NOBODY)

    topics = tuple(replace(topic, partitions=tuple(map(led, topic.partitions))) for topic in answer.topics)
    return replace(answer, brokers=(), controller_id=_NOBODY, topics=topics)
