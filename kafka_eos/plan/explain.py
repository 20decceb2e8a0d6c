"""A plan as text, or as JSON values: the graph, each path's guarantee with its reason, and each setting with its
origin.

Pure. Rule: the text shows what the engine will use; everything is computed in plan or settings, not here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.guarantee import Guarantee
from kafka_eos.abc.state import Ttl
from kafka_eos.config.settings import Settings
from kafka_eos.core.fault_attribution import ErrorRules
from kafka_eos.core.json_values import Json
from kafka_eos.plan import (
    AsOfJoinNode,
    BroadcastConnectNode,
    CachedAsyncMapNode,
    CountWindowNode,
    ExchangeNode,
    FoldNode,
    ForwardNode,
    IntervalJoinNode,
    KeyByNode,
    Node,
    PartialFoldNode,
    Partitioning,
    PatternNode,
    Plan,
    ProcessNode,
    ReduceNode,
    SideOutputNode,
    SinkNode,
    SourceNode,
    TableJoinNode,
    TimestampsNode,
    WindowJoinNode,
    WindowNode,
)

"""The schema of values of any type."""


def explain(
    plan: Plan,
    settings: Settings | None = None,
    notices: Sequence[str] = (),
    *,
    with_defaults: bool = False,
) -> str:
    """Return the whole text, without color; it ends with a newline.

    ``notices`` come from sinks. ``with_defaults``: whether settings that have their default are shown too.
    """
    sections = [_graph(plan), _paths(plan, settings)]
    if trade_offs := list(_trade_offs(plan, settings)):
        sections.append(["trade-offs", *trade_offs])
    if schemas := list(_schemas(plan)):
        sections.append(["schemas", *schemas])
    if clients := plan.describe_clients():
        sections.append(["clients", *(f"  {line}" for line in clients)])
    if settings is not None:
        sections.append(["settings", *(settings_shown(settings) if with_defaults else _settings_changed(settings))])
    if notices := (*notices, *_notices(plan, settings)):
        sections.append(["notices", *(f"  {notice}" for notice in notices)])
    return "\n\n".join("\n".join(section) for section in sections) + "\n"


def describe_plan(plan: Plan, settings: Settings) -> dict[str, Json]:
    """Describe the graph and the settings as JSON values, for the dashboard."""
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
    """Name the nodes whose rows this node reads."""
    refused = " (refused records)" if isinstance(node, SinkNode) and node.is_dead_letter_sink else ""
    return f"<- {', '.join(node.inputs)}{refused}" if node.inputs else ""


def _detail(node: Node) -> str:
    """Describe a node's operation in a few words; empty if its kind suffices."""
    match node:
        case SourceNode():
            errors = "stop" if node.on_error == "stop" else "dead letters"
            after = "" if node.after is None else f"; after {node.after!r} is read to its end"
            rules = _attributed(node.attribution)
            return f"{_described(node.source.describe())}{after}; on error: {errors}{rules}"
        case SinkNode():
            return _described(node.sink.describe())
        case TimestampsNode():
            return f"event time of {'records' if node.fn is None else 'a function'}; {node.strategy}"
        case ProcessNode(timers=event, processing_timers=clock) if event or clock:
            return f"keeps state and timers{' of the clock' if clock and not event else ''}"
        case CountWindowNode():
            return f"keeps state{_lifetime(node.ttl)}; {node.assigner}"
        case WindowNode():
            late = f", and {node.lateness / 1000:g} s more for late rows" if node.lateness else ""
            trigger = "" if node.trigger is None else f", {node.trigger}"
            return f"keeps state; {node.assigner}{trigger}{late}"
        case PatternNode():
            return f"keeps state; {node.pattern}"
        case IntervalJoinNode():
            return f"keeps state; {node.interval}"
        case WindowJoinNode():
            return f"keeps state; {node.assigner}"
        case AsOfJoinNode():
            whose = "all rows" if node.outer else "rows whose key was in the table"
            return f"keeps state; {whose} when their times are reached"
        case TableJoinNode():
            return f"keeps state; {'all rows' if node.unmatched else 'rows whose key is in the table'}"
        case BroadcastConnectNode(table=table):
            return f"keeps broadcast state, whole in each worker{'' if table is None else f', of table {table!r}'}"
        case ExchangeNode(strategy=Partitioning.BROADCAST):
            return "one copy per worker"
        case SideOutputNode():
            return f"{'what has no tag' if node.tag is None else f'side output {node.tag!r}'}"
        case PartialFoldNode():
            return f"sums up in each worker, {'stays there' if node.local else 'sends once per epoch'}"
        case KeyByNode(local=True):
            return "local: no exchange"
        case ForwardNode():
            return "stays in its worker, waits for barriers"
        case CachedAsyncMapNode():
            return f"keeps answers{_lifetime(node.cache)}"
        case FoldNode(merge=merge) if merge is not None:
            return f"keeps state{_lifetime(node.ttl)}; one output per key and epoch"
        case FoldNode() | ReduceNode():
            return f"keeps state{_lifetime(node.ttl)}"
    return "keeps state" if node.stateful else ""


def _lifetime(ttl: Ttl | None) -> str:
    return "" if ttl is None else f" for {ttl.seconds:g} s of {ttl.clock} time"


def _attributed(rules: ErrorRules) -> str:
    """Describe the user's rules for exceptions."""
    lists = {"environment_errors": rules.environment, "record_errors": rules.record}
    return "".join(f"; {name}: {', '.join(e.__name__ for e in found)}" for name, found in lists.items() if found)


def _described(facts: Mapping[str, Json]) -> str:
    """Describe the facts that are set; empty ones come from settings or the server."""
    return ", ".join(f"{name}={value}" for name, value in facts.items() if value not in (None, "", {}, []))


def _paths(plan: Plan, settings: Settings | None) -> list[str]:
    early = settings is not None and settings.checkpoint_mode == "at-least-once" and settings.parallelism > 1
    lines = ["guarantees"]
    for path in plan.paths:
        what = f"{path.guarantee.value}: {path.reason}"
        if early and any(plan.node(name).partitioning for name in path.nodes):
            what = "at-least-once: with this checkpoint_mode, rows overtake the barriers between workers"
        lines += [f"  {' -> '.join(path.nodes)}", f"    {what}"]
    return lines


def _trade_offs(plan: Plan, settings: Settings | None) -> Iterator[str]:
    """Yield what each sink's guarantee costs, and what several sinks cost together."""
    chosen = [node for node in plan.sinks if not node.is_dead_letter_sink]
    for node in chosen:
        if sentences := node.sink.trade_offs():
            yield f"  {node.name}"
            if node.sink.guarantee is Guarantee.EXACTLY_ONCE:
                every = "once an epoch" if settings is None else f"each {settings.checkpoint_interval:g} s"
                yield f"    visible when an epoch is committed ({every}, checkpoint_interval), not before"
            yield from (f"    {sentence}" for sentence in sentences)
    if sum(bool(node.sink.trade_offs()) for node in chosen) > 1:
        yield "  all together"
        yield "    sinks commit an epoch one after the other: until the last has committed, only some readers see it"


def _schemas(plan: Plan) -> Iterator[str]:
    """Yield the record types at both ends of each path, and the origin of their schemas."""
    for path in plan.paths:
        ends = [plan.node(path.nodes[0]), plan.node(path.nodes[-1])]
        if codec_lines := [line for end in ends for line in _codecs(end)]:
            yield f"  {' -> '.join(path.nodes)}"
            yield from (f"    {line}" for line in codec_lines)


def _codecs(end: Node) -> Iterator[str]:
    connector = end.source if isinstance(end, SourceNode) else end.sink if isinstance(end, SinkNode) else None
    codecs = {} if connector is None else connector.codecs()
    if not codecs and isinstance(end, SourceNode) and (of := _in_code(end.source.value_type)):
        yield f"{end.name}: rows{of}"
    for part, codec in codecs.items():
        description = codec.describe()
        if description is None and isinstance(codec, Codec):
            description = f"{codec.name}{_in_code(codec.type)}"
        yield f"{end.name}, {part}: {description}"


def _in_code(tp: Any) -> str:
    """Describe a type; empty for Python's own types."""
    plain = tp is None or getattr(tp, "__module__", None) == "builtins"
    return "" if plain else f" of {getattr(tp, '__name__', tp)}, which is in the code"


def _values(settings: Settings) -> dict[str, str]:
    """Return each setting as text. Secrets are masked."""
    values_of = {name: getattr(settings, name) for name in Settings.model_fields}
    return {name: "-" if value is None else str(value) for name, value in values_of.items()}


def settings_shown(settings: Settings) -> list[str]:
    """Return a line for each setting: name, value and origin. Secrets are masked."""
    shown = _values(settings)
    names, values = _width(shown), _width(shown.values())
    return [f"  {name:{names}}  {value:{values}}  {settings.origin_of(name)}" for name, value in shown.items()]


def _settings_changed(settings: Settings) -> Iterator[str]:
    """Yield a line for each setting that does not have its default, and the number of the others."""
    changed = [line for name, line in zip(_values(settings), settings_shown(settings), strict=True)
               if settings.origin_of(name) != "default"]  # fmt: skip
    yield from changed
    yield f"  {len(_values(settings)) - len(changed)} settings have their default: kafka-eos explain --all shows them"


def _notices(plan: Plan, settings: Settings | None) -> Iterator[str]:
    """Yield notices for readers of the plan."""
    for part in (_guaranteed, _held_back, _growing, _untyped, _derived):
        yield from part(plan)
    if settings is not None and settings.checkpoint_mode == "unaligned":
        yield from _aligned(plan)


def _aligned(plan: Plan) -> Iterator[str]:
    for node in plan.nodes:
        if isinstance(node, BroadcastConnectNode):
            yield (
                f"{node.kind} {node.name!r} waits for barriers although checkpoints are unaligned: all workers must "
                "have received the same broadcast rows"
            )


def _guaranteed(plan: Plan) -> Iterator[str]:
    for node in plan.nodes:
        if isinstance(node, KeyByNode) and node.local:
            yield (
                f"{node.kind} {node.name!r} is local=True: you guarantee that all records of a key are in one "
                "partition of every source, and that partitions of the same number contain the same keys. Its state "
                "can be restored only with the same parallelism or with 1, so set parallelism explicitly: the "
                "default is the number of cores"
            )


def _held_back(plan: Plan) -> Iterator[str]:
    if not any(node.waits_for_event_time for node in plan.nodes):
        return
    for node in plan.nodes:
        if isinstance(node, TimestampsNode) and not node.strategy.detects_idleness:
            yield (
                f"the watermark of {node.source!r} waits for every partition that has not ended: while one has no "
                "records, no window closes and no timer fires; watermarks=….with_idleness(seconds) would not wait"
            )


def _keeps_all(node: Node) -> str:
    return (
        f"{node.kind} {node.name!r} keeps a row for every key forever; if keys come and go, set ttl=Ttl(…) so that "
        "old rows expire"
    )


def _growing(plan: Plan) -> Iterator[str]:
    for node in plan.nodes:
        match node:
            case FoldNode(ttl=None) | ReduceNode(ttl=None):
                yield f"{_keeps_all(node)}, or put a .window(…) by time before it"
            case ProcessNode(grows=True):
                yield _keeps_all(node)
            case CountWindowNode(ttl=None):
                yield (
                    f"{node.kind} {node.name!r} ({node.assigner}) keeps the contents of unfinished windows for every "
                    "key forever; if keys come and go, set .window(…, ttl=Ttl(…)) so that they expire, or use a "
                    "window by time"
                )


def _untyped(plan: Plan) -> Iterator[str]:
    for node in plan.nodes:
        if isinstance(node, ForwardNode) and not node.typed:
            above = plan.node(node.inputs[0])
            keyed = isinstance(above, KeyByNode)
            yield (
                f"{node.kind} {node.name!r}: the type of its rows is unknown, so even unaligned checkpoints wait "
                "until no row is in flight there. "
                + (
                    f"Declare it with values=… of {above.name!r}"
                    if keyed
                    else f"Annotate the return type of the function of {above.name!r}"
                )
            )


def _derived(plan: Plan) -> Iterator[str]:
    for node in plan.nodes:
        if node.stateful and node.has_generated_name:
            yield (
                f"{node.kind} {node.name!r} has a generated name: editing the pipeline can leave its state behind. "
                "Give it a name"
            )


def _width(texts: Iterable[str]) -> int:
    return max(map(len, texts), default=0)
