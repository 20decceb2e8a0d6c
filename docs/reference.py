"""Write the API reference from the code: every public name with its signature and its docstring.

    python docs/reference.py           rewrite docs/api.md
    python docs/reference.py --check   exit 1 if docs/api.md does not match the code

Rule: all explanations are in docstrings; this script only adds headings, and links to the pages with examples.
``tests/test_docs.py`` checks that no public name and no operation is missing.
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import kafka_eos
from kafka_eos import agg, testing
from kafka_eos.connectors import kafka

PAGE: Final = Path(__file__).with_name("api.md")
_WIDTH: Final = 110
"""The width of a signature that is not broken into lines."""
_PROSE_WIDTH: Final = 100
_CONNECTORS: Final = ("kafka_eos.connectors", "kafka_eos.testing")
"""Modules of classes whose methods are called by the engine, except class methods that create one."""


@dataclass(frozen=True)
class Section:
    """Names of one module that belong to one topic."""

    title: str
    module: ModuleType
    names: tuple[str, ...]

    @property
    def imported(self) -> str:
        return "from kafka_eos import agg" if self.module is agg else f"from {self.module.__name__} import …"


SECTIONS: Final = (
    Section("Pipeline and streams", kafka_eos, ("Pipeline", "Stream", "KeyedStream", "WindowedStream")),
    Section("Two streams", kafka_eos, ("connect", "ConnectedStreams")),
    Section("Tables", kafka_eos, ("Table", "VersionedTable")),
    Section(
        "Broadcast state",
        kafka_eos,
        (
            "Broadcast",
            "BroadcastStream",
            "BroadcastConnectedStream",
            "KeyedBroadcastConnectedStream",
            "BroadcastProcessFunction",
            "KeyedBroadcastProcessFunction",
            "BroadcastContext",
            "KeyedBroadcastContext",
            "BroadcastState",
        ),
    ),
    Section(
        "Process functions and state",
        kafka_eos,
        (
            "ProcessFunction",
            "CoProcessFunction",
            "ProcessContext",
            "Timers",
            "Counter",
            "OutputTag",
            "ValueState",
            "ListState",
            "MapState",
            "ReducingState",
            "AggregatingState",
            "Ttl",
        ),
    ),
    Section("Event time", kafka_eos, ("bounded", "monotonic", "generated", "WatermarkStrategy")),
    Section(
        "Windows",
        kafka_eos,
        (
            "tumbling",
            "sliding",
            "session",
            "days",
            "rows",
            "global_",
            "on_count",
            "on_clock",
            "Window",
            "Windowed",
        ),
    ),
    Section("Aggregates", agg, tuple(agg.__all__)),
    Section("Patterns", kafka_eos, ("Pattern",)),
    Section("Requests", kafka_eos, ("retries", "breaker")),
    Section("Kafka", kafka, tuple(kafka.__all__)),
    Section(
        "Tests without a broker",
        testing,
        ("run_local", "TimestampedValue", "AdvanceClock", "LocalRun", "ListSource", "MemorySink"),
    ),
)
"""Errors are in failures-and-recovery.md#errors; the contracts of connectors are in writing-a-source.md and
writing-a-sink.md."""

PAGES: Final = {
    "Stream.map": "getting-started.md#the-pipeline",
    "Stream.filter": "getting-started.md#the-pipeline",
    "Stream.with_timestamps": "event-time.md#timestamps",
    "Stream.async_map": "async.md",
    "Stream.broadcast": "broadcast.md",
    "Stream.side_output": "event-time.md#side-outputs",
    "KeyedStream.aggregate": "aggregates.md",
    "KeyedStream.async_map": "async.md#cached-responses",
    "KeyedStream.deduplicate": "first-programs.md#deduplicate-by-id-over-an-hour",
    "KeyedStream.distinct": "first-programs.md#each-id-once",
    "KeyedStream.fold": "getting-started.md#the-pipeline",
    "KeyedStream.join": "tables.md#join-and-left-join",
    "KeyedStream.join_as_of": "tables.md#as-of-joins",
    "KeyedStream.left_join": "tables.md#join-and-left-join",
    "KeyedStream.left_join_as_of": "tables.md#as-of-joins",
    "KeyedStream.match": "patterns.md",
    "KeyedStream.process": "state.md",
    "KeyedStream.reduce": "state.md",
    "KeyedStream.sessionize": "first-programs.md#sessionize-clicks",
    "KeyedStream.window": "windows.md",
    "WindowedStream.aggregate": "windows.md#rows-one-value-or-all-of-them",
    "WindowedStream.fold": "windows.md#tumbling",
    "WindowedStream.process": "windows.md#rows-one-value-or-all-of-them",
    "WindowedStream.rate": "windows.md#rows-one-value-or-all-of-them",
    "WindowedStream.reduce": "windows.md#rows-one-value-or-all-of-them",
    "WindowedStream.top_n": "first-programs.md#the-top-ten-of-each-hour",
    "ConnectedStreams.interval_join": "joins.md#interval-join",
    "ConnectedStreams.process": "joins.md#a-function-of-both-streams",
    "ConnectedStreams.window_join": "joins.md#window-join",
    "BroadcastConnectedStream.process": "broadcast.md",
    "KeyedBroadcastConnectedStream.process": "broadcast.md#with-keyed-state",
    "Pipeline.source": "getting-started.md#the-pipeline",
    "Pipeline.table": "tables.md",
    "Table.broadcast": "broadcast.md",
    "Table.with_timestamps": "tables.md#as-of-joins",
    "connect": "joins.md",
    "Pattern": "patterns.md#defining-a-pattern",
    "ProcessFunction": "event-time.md#timers",
    "CoProcessFunction": "joins.md#a-function-of-both-streams",
    "BroadcastProcessFunction": "broadcast.md",
    "KeyedBroadcastProcessFunction": "broadcast.md#with-keyed-state",
    "Timers": "event-time.md#timers",
    "OutputTag": "event-time.md#side-outputs",
    "ValueState": "state.md#types",
    "ListState": "state.md#types",
    "MapState": "state.md#types",
    "ReducingState": "state.md#types",
    "AggregatingState": "state.md#types",
    "Ttl": "state.md#time-to-live",
    "bounded": "event-time.md#watermarks",
    "monotonic": "event-time.md#watermarks",
    "generated": "event-time.md#watermarks",
    "WatermarkStrategy": "event-time.md#watermarks",
    "tumbling": "windows.md#tumbling",
    "sliding": "windows.md#sliding",
    "session": "windows.md#sessions",
    "days": "windows.md#calendar-days",
    "rows": "windows.md#count-windows",
    "global_": "windows.md#count-windows",
    "on_count": "windows.md#early-results",
    "on_clock": "windows.md#early-results",
    "Aggregate": "aggregates.md#your-own",
    "retries": "async.md#failures",
    "breaker": "async.md#failures",
    "KafkaSource": "kafka-sources.md",
    "KafkaSink": "getting-started.md#the-pipeline",
    "dead_letter": "dead-letters.md",
    "run_local": "getting-started.md#a-test-without-a-broker",
}
"""The location of each example; all of them are run as tests."""


def page() -> str:
    """Return the whole page."""
    contents = "\n".join(f"- [{section.title}](#{_anchor(section.title)})" for section in SECTIONS)
    parts = [
        "# API reference",
        _wrap(
            "On this page you can look up every public name of pipelines, with its signature and its behavior. "
            "`docs/reference.py` generates the page from the code. The linked pages have examples, which are run as "
            "tests."
        ),
        _wrap(
            "Not on this page: [errors](failures-and-recovery.md#errors), [settings](configuration.md#settings), other "
            "connectors, and the contracts for [sources](writing-a-source.md) and [sinks](writing-a-sink.md) of your "
            "own."
        ),
        contents,
    ]
    for section in SECTIONS:
        parts += [f"## {section.title}", f"`{section.imported}`"]
        for name in section.names:
            parts += entries(name, getattr(section.module, name))
    return "\n\n".join(parts) + "\n"


def entries(name: str, found: Any) -> Iterator[str]:
    """Yield the entry of a public name, and those of its methods if it is a class."""
    yield f"### {name}"
    if isinstance(found, type):
        yield from _entry(name, found, constructor(found))
        for method, member in methods(found):
            yield f"#### {name}.{method}"
            yield from _entry(f"{name}.{method}", member, signatures(method, member))
    else:
        yield from _entry(name, found, signatures(name, found) if callable(found) else [])


def methods(cls: type) -> Iterator[tuple[str, Any]]:
    """Yield the methods that users call or define, in the order of the code.

    Methods inherited from a class of this package are included, unless that class has its own entry. Methods of a
    connector that only the engine calls are left out.
    """
    seen: set[str] = set()
    for base in [cls, *(base for base in cls.__mro__[1:] if base.__module__.startswith("kafka_eos"))]:
        if base is not cls and base.__name__ in _documented():
            seen.update(vars(base))
            continue
        for name, member in vars(base).items():
            if not name.startswith("_") and name not in seen and _is_method(cls, member):
                seen.add(name)
                yield name, member


def _is_method(cls: type, member: Any) -> bool:
    if cls.__module__.startswith(_CONNECTORS):
        return isinstance(member, classmethod)
    return inspect.isfunction(member) or isinstance(member, property | classmethod | staticmethod)


def _documented() -> set[str]:
    return {name for section in SECTIONS for name in section.names}


def constructor(cls: type) -> list[str]:
    """Return the signature with which users create an object; nothing if they never do."""
    if "__init__" not in {name for base in cls.__mro__[:-1] for name in vars(base)} or _created_by_operations(cls):
        return []
    return [_shown(cls.__name__, inspect.signature(cls))]


def _created_by_operations(cls: type) -> bool:
    """Return whether users get objects of this class from operations or the engine, and never call its constructor."""
    made = getattr(cls, "_is_protocol", False) or hasattr(cls, "_append_node")
    return bool(made) or cls.__name__ in ("Pattern", "WatermarkStrategy", "LocalRun", "Broadcast")


def signatures(name: str, member: Any) -> list[str]:
    """Return the signature of each overload, or of the function if it has none."""
    if isinstance(member, property):
        return [_shown(name, inspect.signature(member.fget), "property")] if member.fget else []
    function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
    if isinstance(function, type):
        return constructor(function)
    overloads = [getattr(each, "__func__", each) for each in typing.get_overloads(function)]
    return [_shown(name, inspect.signature(each)) for each in overloads or [function]]


def _shown(name: str, signature: inspect.Signature, decorator: str = "") -> str:
    kept = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    signature = signature.replace(parameters=kept)
    returns = (
        "" if signature.return_annotation is inspect.Signature.empty else f" -> {_text(signature.return_annotation)}"
    )
    if decorator:
        return f"{name}{returns.replace(' -> ', ': ')}"
    parts = [_parameter(each) for each in _with_marks(kept)]
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= _WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){returns}"


def _with_marks(parameters: list[inspect.Parameter]) -> Iterator[inspect.Parameter | str]:
    """Yield the parameters, with the star before the keyword-only ones."""
    star = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    for each in parameters:
        if each.kind is each.KEYWORD_ONLY and not star:
            star = True
            yield "*"
        yield each


def _parameter(each: inspect.Parameter | str) -> str:
    if isinstance(each, str):
        return each
    mark = "*" if each.kind is each.VAR_POSITIONAL else "**" if each.kind is each.VAR_KEYWORD else ""
    tp = "" if each.annotation is each.empty else f": {_text(each.annotation)}"
    if each.default is each.empty:
        return f"{mark}{each.name}{tp}"
    default = f"<{type(each.default).__name__}>" if " at 0x" in repr(each.default) else _text(each.default, quoted=True)
    return f"{each.name}{tp} = {default}" if tp else f"{each.name}={default}"


def _text(found: Any, *, quoted: bool = False) -> str:
    """Return a type or a default as it is written in the code."""
    if isinstance(found, str) and not quoted:
        return found.replace("_Assigner", "Assigner").replace("interfaces.", "")
    text = found.__name__ if isinstance(found, type) else repr(found)
    return re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", text)


def _entry(name: str, found: Any, lines: list[str]) -> Iterator[str]:
    if lines:
        yield "```text\n" + "\n".join(lines) + "\n```"
    if text := _prose(found):
        yield text
    if name in PAGES:
        yield f"Example: [{PAGES[name].partition('#')[0]}]({PAGES[name]})"


def _prose(found: Any) -> str:
    """Return the docstring as Markdown."""
    text = inspect.cleandoc(found.__doc__ or "") if getattr(found, "__doc__", None) else ""
    if re.match(r"\w+\(.*\)$", text) or text.startswith("Any("):  # what dataclasses write
        return ""
    blocks = [_block(block) for block in text.split("\n\n")]
    return "\n\n".join(block for block in blocks if block)


def _block(block: str) -> str:
    """Return one paragraph as Markdown; indented lines are kept as they are."""
    parts = []
    for indented, lines in groupby(block.splitlines(), key=lambda line: line.startswith(" ")):
        if indented:
            parts.append(f"```text\n{textwrap.dedent(chr(10).join(lines)).replace('``', '')}\n```")
        else:
            parts.append(_wrap(re.sub(r"``(.+?)``", r"`\1`", " ".join(lines))))
    return "\n\n".join(parts)


def _wrap(paragraph: str) -> str:
    """Return the paragraph in lines of at most ``_PROSE_WIDTH`` characters. Code in backticks stays on one line."""
    joined = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", "\0"), paragraph)
    lines = textwrap.wrap(joined, _PROSE_WIDTH, break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def _anchor(title: str) -> str:
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def main() -> int:
    """Run the script; return the exit code."""
    fresh = PAGE.exists() and PAGE.read_text(encoding="utf-8") == page()
    if "--check" in sys.argv[1:]:
        print("" if fresh else "api.md does not match the code. Run: make docs", end="")
        return 0 if fresh else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
