"""Traces of calls of the user's functions: results by arguments, effects outside of the job, changed globals.

Rule: a function is called as often and in the same order as without the trace, and gets the same arguments.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import io
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass
from dataclasses import fields as dataclass_fields
from functools import wraps
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any, Final

import msgspec

from kafka_eos._util.call_site import CodeLocation, location_of
from kafka_eos.core.package import PACKAGE
from kafka_eos.plan import Node
from kafka_eos.plan.function_checks import asynchronous, describe_function

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_EFFECTS: Final = {
    "socket.connect": "opens a connection",
    "socket.sendto": "sends a packet",
    "socket.sendmsg": "sends a message",
    "subprocess.Popen": "starts a process",
    "os.system": "starts a process",
    "os.posix_spawn": "starts a process",
    "os.remove": "removes a file",
    "os.rename": "renames a file",
    "os.mkdir": "makes a directory",
    "os.rmdir": "removes a directory",
    "os.truncate": "changes a file",
    "sqlite3.connect": "opens a database",
}
"""Audit events of Python that change something outside of the process."""


class Effect(msgspec.Struct, frozen=True):
    """An effect outside of the job, at a line of the user's program."""

    what: str
    file: str
    line: int
    text: str


class FunctionTrace(msgspec.Struct):
    """The calls of one function. ``calls``: a digest of the arguments, and one of the result."""

    function: str
    operator: str
    role: str
    location: tuple[str, int, str]
    calls: list[tuple[str, str]] = msgspec.field(default_factory=list)
    effects: dict[str, int] = msgspec.field(default_factory=dict)
    """Number of effects, by their JSON."""
    changed: list[Effect] = msgspec.field(default_factory=list)
    """Lines that use a global which has another value after the run."""


@dataclass
class CallTracer:
    """Traces all functions of a plan while it runs in one process. ``home``: the directory of the user's program."""

    home: Path
    traces: list[FunctionTrace] = field(default_factory=list)
    _active: threading.local = field(default_factory=threading.local)
    _globals: list[tuple[FunctionTrace, list[_UsedGlobal]]] = field(default_factory=list)

    def start(self) -> None:
        """Receive the audit events of this process from now on. An audit hook cannot be removed."""
        sys.addaudithook(self._note_event)

    def watch(self, fn: Callable[..., Any], node: Node, role: str) -> Callable[..., Any]:
        """Return a function like ``fn`` whose calls are traced."""
        plain = _plain(fn)
        if asynchronous(fn) or plain is None or not self._is_users(plain.__code__.co_filename):
            return fn  # a request is part of the checkpoint, and a function of a library is not the user's
        code = plain.__code__
        place = CodeLocation(code.co_filename, code.co_firstlineno, _line(code.co_filename, code.co_firstlineno))
        trace = FunctionTrace(describe_function(fn), node.name, role, (place.file, place.line, place.text))
        self.traces.append(trace)
        self._globals.append((trace, list(_list_globals(plain, self._is_users, set()))))

        @wraps(fn)
        def traced(*args: Any) -> Any:
            given = _digest(args)
            outer, self._active.trace = getattr(self._active, "trace", None), trace
            try:
                result = fn(*args)
                if inspect.isgenerator(result):
                    result = list(result)
            finally:
                self._active.trace = outer
            trace.calls.append((given, _digest(result)))
            return result

        return traced

    def finish(self) -> list[FunctionTrace]:
        """Compare globals with what they were, and return all traces."""
        for trace, used in self._globals:
            trace.changed = [each.effect() for each in used if each.is_changed()]
        return self.traces

    def _is_users(self, file: str) -> bool:
        path = Path(file)
        inside = path.is_relative_to(self.home) and PACKAGE not in path.parents
        return inside and "site-packages" not in path.parts

    def _note_event(self, event: str, args: tuple[Any, ...]) -> None:
        trace: FunctionTrace | None = getattr(self._active, "trace", None)
        if trace is None:
            return
        what = _EFFECTS.get(event)
        if event == "open" and _writes(args):
            what = f"writes the file {args[0]}"
        if what is None:
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not self._is_users(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            self._active.trace = None  # to quote the line opens the file
            at = location_of(frame)
            key = msgspec.json.encode(Effect(what, at.file, at.line, at.text)).decode()
            trace.effects[key] = trace.effects.get(key, 0) + 1
            self._active.trace = trace


def _writes(args: tuple[Any, ...]) -> bool:
    path, mode, flags = args
    if isinstance(path, int) or str(path) == os.devnull or str(path).endswith(".pyc"):
        return False
    return bool(set(mode) & set("wax+")) if isinstance(mode, str) else bool((flags or 0) & _WRITING)


def _plain(fn: Any) -> FunctionType | None:
    """Return the function that is behind partials, methods and decorators; None if it is not written in Python."""
    while isinstance(fn, functools.partial):
        fn = fn.func
    fn = getattr(inspect.unwrap(fn) if callable(fn) else fn, "__func__", fn)
    return fn if isinstance(fn, FunctionType) else None


def _line(file: str, number: int) -> str:
    with open(file, encoding="utf-8") as lines:
        return next((line.strip() for at, line in enumerate(lines, 1) if at == number), "")


# ---------------------------------------------------------------- globals


@dataclass(frozen=True)
class _UsedGlobal:
    """A global variable, or one of an enclosing function, that a function uses at ``line``."""

    name: str
    read: Callable[[], Any]
    file: str
    line: int
    before: str

    def is_changed(self) -> bool:
        return _digest_global(self.read()) != self.before

    def effect(self) -> Effect:
        what = f"changes {self.name}, which is not state of the pipeline"
        return Effect(what, self.file, self.line, _line(self.file, self.line))


def _list_globals(fn: FunctionType, is_users: Callable[[str], bool], seen: set[CodeType]) -> Iterator[_UsedGlobal]:
    """Yield the variables outside of the function that it uses, and those of the user's functions that it calls."""
    code = fn.__code__
    if code in seen or not is_users(code.co_filename):
        return
    seen.add(code)
    lines = {step.argval: step.positions.lineno for step in dis.get_instructions(code) if step.positions is not None}
    for name in code.co_names:
        value = fn.__globals__.get(name)
        if isinstance(value, FunctionType):
            yield from _list_globals(value, is_users, seen)
        elif name in fn.__globals__ and not isinstance(value, ModuleType | type) and name in lines:
            read = functools.partial(fn.__globals__.get, name)
            yield _UsedGlobal(name, read, code.co_filename, lines[name] or code.co_firstlineno, _digest_global(value))
    for name, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True):
        read = functools.partial(getattr, cell, "cell_contents", None)
        line = lines.get(name) or code.co_firstlineno
        yield _UsedGlobal(name, read, code.co_filename, line, _digest_global(read()))


def _digest_global(value: Any) -> str:
    if isinstance(value, io.IOBase):
        return "closed" if value.closed else str(value.tell() if value.seekable() else 0)
    return _digest(value)


# ---------------------------------------------------------------- digests


def _digest(value: Any) -> str:
    """Return a digest that is the same in each process if the value is equal."""
    return hashlib.blake2b(_canonical(value, 0).encode(errors="replace"), digest_size=12).hexdigest()


def _canonical(value: Any, depth: int) -> str:
    if depth > 20:
        return "…"
    inner = functools.partial(_canonical, depth=depth + 1)
    if isinstance(value, dict):
        return f"{{{','.join(sorted(f'{inner(k)}:{inner(v)}' for k, v in value.items()))}}}"
    if isinstance(value, set | frozenset):
        return f"set({','.join(sorted(map(inner, value)))})"
    if isinstance(value, list | tuple):
        return f"({','.join(map(inner, value))})"
    names = _field_names(value)
    if names is not None:
        return f"{type(value).__qualname__}({','.join(f'{n}={inner(getattr(value, n, None))}' for n in names)})"
    return _ADDRESS.sub("", repr(value))


def _field_names(value: Any) -> list[str] | None:
    """Return the fields of a record; None for other values."""
    if isinstance(value, type):
        return None
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if is_dataclass(value):
        return [each.name for each in dataclass_fields(value)]
    declared = getattr(type(value), "model_fields", None)
    return list(declared) if isinstance(declared, dict) else None
