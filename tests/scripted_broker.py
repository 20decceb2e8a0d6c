"""A broker that answers as a test tells it to, over real sockets: what a real one does too rarely to be tested."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeAlias

from kio.schema.api_versions.v3.response import ApiVersion, ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.find_coordinator.v4.response import Coordinator, FindCoordinatorResponse
from kio.schema.metadata.v11.response import MetadataResponse, MetadataResponseBroker
from kio.schema.types import BrokerId
from kio.static.primitive import i16, i32, i32Timedelta

from tests.wire import API_VERSIONS, METADATA, framed, request_of

Answer: TypeAlias = Callable[[Any], Any]
"""Of a request, as kio reads it: an answer, or one of the faults below."""

NOW = i32Timedelta.resolution * 0
FIND_COORDINATOR = 10


class Half:
    """Half of this answer, and then the end of the connection."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


class Stray:
    """This answer, as one to another request."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer


HANG_UP = object()
"""No answer: the connection ends."""
SILENCE = object()
"""No answer, ever."""


class ScriptedBroker:
    """Listens on 127.0.0.1; is the only broker, and coordinates everything. ``answers`` by API key go first."""

    def __init__(self, answers: Mapping[int, Answer], highest: Mapping[int, int] | None = None) -> None:
        self._answers = {API_VERSIONS: self._versions, METADATA: self._self, FIND_COORDINATOR: self.coordinator}
        self._answers |= answers
        self._highest = highest or {}
        self.cluster_id: str | None = "here"
        self.seen: list[Any] = []
        """Every request, in order."""
        self.links: list[socket.socket] = []
        """Every connection, in order."""

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.hang_up()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def script(self, key: int, answer: Answer) -> None:
        """From now on."""
        self._answers[key] = answer

    def hang_up(self) -> None:
        """End every connection, as a broker does with those that were idle for long."""
        for link in self.links:
            with suppress(OSError):
                link.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                link, _ = self._listener.accept()
                self.links.append(link)
                threading.Thread(target=self._serve, args=(link,), daemon=True).start()

    def _serve(self, link: socket.socket) -> None:
        with link, link.makefile("rb") as frames, suppress(OSError):
            while len(length := frames.read(4)) == 4:
                correlation, request = request_of(frames.read(*struct.unpack(">i", length)))
                self.seen.append(request)
                answer = self._answers[request.__api_key__](request)
                if answer is HANG_UP or not self._sent(link, answer, correlation):
                    return

    @staticmethod
    def _sent(link: socket.socket, answer: Any, correlation: int) -> bool:
        if isinstance(answer, Half):
            whole = framed(answer.answer, correlation)
            link.sendall(whole[: len(whole) // 2])
            return False
        if isinstance(answer, Stray):
            link.sendall(framed(answer.answer, correlation + 1))
        elif isinstance(answer, bytes):
            link.sendall(answer)
        elif answer is not SILENCE:
            link.sendall(framed(answer, correlation))
        return True

    def _versions(self, request: Any) -> ApiVersionsResponse:
        keys = [0, 1, 2, 3, 8, 9, 10, 17, 18, 22, 24, 25, 26, 28, 32, 36, 55, 65, 66]
        return ApiVersionsResponse(
            error_code=ErrorCode.none,
            api_keys=tuple(
                ApiVersion(api_key=i16(key), min_version=i16(0), max_version=i16(self._highest.get(key, 13)))
                for key in keys
            ),
            throttle_time=i32Timedelta.parse(NOW),
        )

    def _self(self, request: Any) -> MetadataResponse:
        this = MetadataResponseBroker(node_id=BrokerId(1), host="127.0.0.1", port=i32(self.port))
        return MetadataResponse(
            throttle_time=i32Timedelta.parse(NOW), brokers=(this,), cluster_id=self.cluster_id, topics=()
        )

    def coordinator(self, request: Any) -> FindCoordinatorResponse:
        """An answer that names this broker, in the version that asks for several keys."""
        found = Coordinator(
            key=request.coordinator_keys[0],
            node_id=BrokerId(1),
            host="127.0.0.1",
            port=i32(self.port),
            error_code=ErrorCode.none,
            error_message=None,
        )
        return FindCoordinatorResponse(throttle_time=i32Timedelta.parse(NOW), coordinators=(found,))
