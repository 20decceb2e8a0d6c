"""A plan as text, or as values: the graph, the guarantee of every path and why, the settings and where each came from.

Pure. Rule: what is shown is what the engine will use; nothing is computed here that is not in plan or settings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kafka_eos.abc.codec import Described, HasCodecs
from kafka_eos.abc.guarantee import Guarantee, Priced
from kafka_eos.abc.state import Ttl
from kafka_eos.config.settings import Settings
from kafka_eos.core.fault_attribution import Attribution
from kafka_eos.core.json_values import Json
from kafka_eos.plan import (
    AsOfJoin,
    BroadcastConnect,
    CachedAsyncMap,
    CountedWindows,
    Exchange,
    Fold,
    Forward,
    IntervalJoin,
    KeyBy,
    Node,
    PartialFold,
    Partitioning,
    Patterns,
    Plan,
    Process,
    Reduce,
    SideOutput,
    Sink,
    Source,
    TableJoin,
    Timestamps,
    WindowJoin,
    Windows,
)

"""The schema of values of any type."""


def explain(
    plan: Plan, settings: Settings | None = None, notices: Sequence[str] = (), *, has_barriers: bool = True
) -> str:
    """The whole text, without colour; ends with a newline.

    ``notices`` are what sinks, or the engine, had to say; ``has_barriers``: whether it sends them between workers.
    """
    sections = [_graph(plan), _paths(plan, settings if has_barriers else None)]
    if prices := list(_prices(plan, settings)):
        sections.append(["prices", *prices])
    if schemas := list(_schemas(plan)):
        sections.append(["schemas", *schemas])
    if settings is not None:
        sections.append(["settings", *settings_shown(settings)])
    if notices := (*notices, *_told(plan, settings)):
        sections.append(["notices", *(f"  {notice}" for notice in notices)])
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def outline(plan: Plan, settings: Settings) -> dict[str, Json]:
    """The graph, and the settings with their origins, as values for whoever draws them; secrets are masked."""
    return {
        "operators": [
            {"name": node.name, "kind": node.kind, "inputs": list(node.inputs), "detail": _detail(node)}
            for node in plan.nodes
        ],
        "settings": [
            {"name": name, "value": value, "origin": settings.origin_of(name)}
            for name, value in _values(settings).items()
        ],
    }


def _graph(plan: Plan) -> list[str]:
    names, kinds = _width(node.name for node in plan.nodes), _width(node.kind for node in plan.nodes)
    lines = [f"pipeline {plan.name}", f"  fingerprint {plan.fingerprint[:16]}", "", "operators"]
    for node in plan.nodes:
        above_and_detail = "  ".join(filter(None, (_above(node), _detail(node))))
        lines.append(f"  {node.name:{names}}  {node.kind:{kinds}}  {above_and_detail}".rstrip())
    return lines


def _above(node: Node) -> str:
    """Whose rows it gets."""
    refused = " (refused records)" if isinstance(node, Sink) and node.dead_letters else ""
    return f"<- {', '.join(node.inputs)}{refused}" if node.inputs else ""


def _detail(node: Node) -> str:
    """What it does, in a few words; nothing if its kind says it."""
    match node:
        case Source():
            errors = "stop" if node.on_error == "stop" else "dead letters"
            after = "" if node.after is None else f"; after {node.after!r} is read to its end"
            said = _attributed(node.attribution)
            return f"{_described(node.source.describe())}{after}; on error: {errors}{said}"
        case Sink():
            return _described(node.sink.describe())
        case Timestamps():
            return f"event time of {'records' if node.fn is None else 'a function'}; {node.strategy}"
        case Process(timers=event, processing_timers=clock) if event or clock:
            return f"keeps state and timers{' of the clock' if clock and not event else ''}"
        case CountedWindows():
            return f"keeps state{_lifetime(node.ttl)}; {node.assigner}"
        case Windows():
            late = f", and {node.lateness / 1000:g} s more for late rows" if node.lateness else ""
            trigger = "" if node.trigger is None else f", {node.trigger}"
            return f"keeps state; {node.assigner}{trigger}{late}"
        case Patterns():
            return f"keeps state; {node.pattern}"
        case IntervalJoin():
            return f"keeps state; {node.interval}"
        case WindowJoin():
            return f"keeps state; {node.assigner}"
        case AsOfJoin():
            whose = "all rows" if node.outer else "rows that the table had something for"
            return f"keeps state; {whose} at their times"
        case TableJoin():
            return f"keeps state; {'all rows' if node.unmatched else 'rows that the table has something for'}"
        case BroadcastConnect(table=table):
            return f"keeps broadcast state, whole in each worker{'' if table is None else f', of table {table!r}'}"
        case Exchange(how=Partitioning.BROADCAST):
            return "a copy for each worker"
        case SideOutput():
            return f"{'what has no tag' if node.tag is None else f'side output {node.tag!r}'}"
        case PartialFold():
            return f"sums up in each worker, {'stays there' if node.local else 'sends once an epoch'}"
        case KeyBy(local=True):
            return "local: no exchange"
        case Forward():
            return "stays in its worker, waits for barriers"
        case CachedAsyncMap():
            return f"keeps answers{_lifetime(node.cache)}"
        case Fold(merge=merge) if merge is not None:
            return f"keeps state{_lifetime(node.ttl)}; one output a key and epoch"
        case Fold() | Reduce():
            return f"keeps state{_lifetime(node.ttl)}"
    return "keeps state" if node.stateful else ""


def _lifetime(ttl: Ttl | None) -> str:
    return "" if ttl is None else f" for {ttl.seconds:g} s of {ttl.clock} time"


def _attributed(said: Attribution) -> str:
    """What the user has said about exceptions."""
    lists = {"environment_errors": said.environment, "record_errors": said.record}
    return "".join(f"; {name}: {', '.join(e.__name__ for e in found)}" for name, found in lists.items() if found)


def _described(facts: Mapping[str, Json]) -> str:
    """Facts that are set; what is empty comes from settings or the server."""
    return ", ".join(f"{name}={value}" for name, value in facts.items() if value not in (None, "", {}, []))


def _paths(plan: Plan, settings: Settings | None) -> list[str]:
    early = settings is not None and settings.checkpoint_mode == "at-least-once" and settings.parallelism > 1
    lines = ["guarantees"]
    for path in plan.paths:
        what = f"{path.guarantee.value}: {path.reason}"
        if early and any(plan.node(name).partitioning for name in path.nodes):
            what = "at-least-once: checkpoint_mode lets rows pass the barriers between workers"
        lines += [f"  {' -> '.join(path.nodes)}", f"    {what}"]
    return lines


def _prices(plan: Plan, settings: Settings | None) -> Iterator[str]:
    """What the guarantee of each path costs at its sink, and what several sinks cost together."""
    chosen = [node for node in plan.sinks if not node.dead_letters]
    for node in chosen:
        if isinstance(node.sink, Priced):
            yield f"  {node.name}"
            if node.sink.guarantee is Guarantee.EXACTLY_ONCE:
                every = "once an epoch" if settings is None else f"each {settings.checkpoint_interval:g} s"
                yield f"    visible when an epoch is committed ({every}, checkpoint_interval), and not before"
            yield from (f"    {sentence}" for sentence in node.sink.price())
    if len([node for node in chosen if isinstance(node.sink, Priced)]) > 1:
        yield "  all together"
        yield "    sinks commit an epoch in one phase, not at one moment: until the last has, only some readers see it"


def _schemas(plan: Plan) -> Iterator[str]:
    """What the records of both ends of each path are, and where their schemas come from."""
    for path in plan.paths:
        ends = [plan.node(path.nodes[0]), plan.node(path.nodes[-1])]
        if told := [line for end in ends for line in _codecs(end)]:
            yield f"  {' -> '.join(path.nodes)}"
            yield from (f"    {line}" for line in told)


def _codecs(end: Node) -> Iterator[str]:
    connector: Any = end.source if isinstance(end, Source) else end.sink if isinstance(end, Sink) else None
    if not isinstance(connector, HasCodecs):
        if of := _in_code(getattr(connector, "value_type", None)):
            yield f"{end.name}: rows{of}"
        return
    for part, codec in connector.codecs().items():
        if isinstance(codec, Described):
            yield f"{end.name}, {part}: {codec.describe()}"
        else:
            yield f"{end.name}, {part}: {codec.name}{_in_code(getattr(codec, 'type', None))}"


def _in_code(tp: Any) -> str:
    """What is said of a type; nothing of those that Python brings."""
    plain = tp is None or getattr(tp, "__module__", None) == "builtins"
    return "" if plain else f" of {getattr(tp, '__name__', tp)}, which is in the code"


def _values(settings: Settings) -> dict[str, str]:
    """Each setting as text. Secrets are masked."""
    values_of = {name: getattr(settings, name) for name in Settings.model_fields}
    return {name: "-" if value is None else str(value) for name, value in values_of.items()}


def settings_shown(settings: Settings) -> list[str]:
    """A line for each setting: name, value and origin. Secrets are masked."""
    shown = _values(settings)
    names, values = _width(shown), _width(shown.values())
    return [f"  {name:{names}}  {value:{values}}  {settings.origin_of(name)}" for name, value in shown.items()]


def _told(plan: Plan, settings: Settings | None) -> Iterator[str]:
    """What a reader of the plan should know."""
    for part in (_vouched, _held_back, _growing, _untyped, _derived):
        yield from part(plan)
    if settings is not None and settings.checkpoint_mode == "unaligned":
        yield from _aligned(plan)


def _aligned(plan: Plan) -> Iterator[str]:
    for node in plan.nodes:
        if isinstance(node, BroadcastConnect):
            yield (
                f"{node.kind} {node.name!r} waits for barriers though checkpoints are unaligned: all workers must have "
                "got the same rows of what is broadcast"
            )


def _vouched(plan: Plan) -> Iterator[str]:
    for node in plan.nodes:
        if isinstance(node, KeyBy) and node.local:
            yield (
                f"{node.kind} {node.name!r} is local=True: you vouch that all records of a key are in one partition of "
                "every source, and that partitions of the same number hold the same keys; state behind it can be "
                "restored with the same parallelism, or with 1, so set it: by default it is the number of cores"
            )


def _held_back(plan: Plan) -> Iterator[str]:
    if not any(node.waits for node in plan.nodes):
        return
    for node in plan.nodes:
        if isinstance(node, Timestamps) and not node.strategy.heeds_silence:
            yield (
                f"event time of {node.source!r} waits for each of its partitions that is not over: as long as one "
                "brings nothing, no window and no timer behind it comes to its time; "
                "watermarks=….with_idleness(seconds) goes on then"
            )


def _keeps_all(node: Node) -> str:
    return (
        f"{node.kind} {node.name!r} keeps a row for every key it has seen, for ever; if keys come and go, let what "
        "they leave end with ttl=Ttl(…)"
    )


def _growing(plan: Plan) -> Iterator[str]:
    for node in plan.nodes:
        match node:
            case Fold(ttl=None) | Reduce(ttl=None):
                yield f"{_keeps_all(node)}, or put a .window(…) of time before it"
            case Process(grows=True):
                yield _keeps_all(node)
            case CountedWindows(ttl=None):
                yield (
                    f"{node.kind} {node.name!r} ({node.assigner}) keeps what an unfinished window holds, for "
                    "every key it has seen, for ever; if keys come and go, let what they leave end with "
                    ".window(…, ttl=Ttl(…)), or use a window of time"
                )


def _untyped(plan: Plan) -> Iterator[str]:
    for node in plan.nodes:
        if isinstance(node, Forward) and not node.typed:
            above = plan.node(node.inputs[0])
            keyed = isinstance(above, KeyBy)
            yield (
                f"{node.kind} {node.name!r}: the type of its rows is not known, so checkpoints wait until none is "
                "under way there, unaligned ones too; on Spark they are written, and any but plain values (str, "
                "numbers, lists, dicts …) stop the job. "
                + (
                    f"Say it with values=… of {above.name!r}"
                    if keyed
                    else f"Annotate what the function of {above.name!r} returns"
                )
            )


def _derived(plan: Plan) -> Iterator[str]:
    for node in plan.nodes:
        if node.stateful and node.derived:
            yield f"{node.kind} {node.name!r} has no name of its own; editing the pipeline can orphan its state"


def _width(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)
