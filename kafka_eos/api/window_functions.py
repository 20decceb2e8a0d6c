"""The contents of a window for each kind of function: one value, an accumulator, or all elements."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from operator import itemgetter
from typing import Any

from msgspec.structs import replace

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs import CountedCodec, ElementsCodec
from kafka_eos.core.windows import Window, Windowed
from kafka_eos.plan.window_contents import WindowContents
from kafka_eos.runtime.operators.function_outputs import list_outputs

Element = tuple[Any, tuple[int, int, int]]
"""A row's value, and its event-time sort key."""
Emit = Callable[[Any, Window, Any], Sequence[Any]]


def reducing(fn: Callable[[Any, Any], Any], codec: Codec[Any]) -> WindowContents:
    """Return contents that reduce the values to one with ``fn``."""
    return WindowContents(_itself, fn, fn, windowed, codec)


def folding(
    init: Callable[[], Any],
    step: Callable[[Any, Any], Any],
    merge: Callable[[Any, Any], Any] | None,
    emit: Emit,
    codec: Codec[Any],
    *,
    by_time: bool = False,
) -> WindowContents:
    """Return contents that fold the values into an accumulator."""

    def first(value: Any) -> Any:
        return step(init(), value)

    return WindowContents(first, step, merge, emit, codec, by_time)


def all_elements(
    fn: Callable[[Any, Window, list[Any]], Iterable[Any]], codec: Codec[Any], *, numbered: bool = False
) -> WindowContents:
    """Return contents that keep all values, for ``fn``: in the order of event-time sort keys, then of their bytes.

    ``numbered``: in the order of their numbers instead.
    """

    def emit(key: Any, window: Window, elements: list[Element]) -> Sequence[Any]:
        found = sorted(elements, key=itemgetter(1))
        places = [place for _, place in found]
        if len(set(places)) < len(places):
            found.sort(key=lambda element: (element[1], codec.encode(element[0])))
        return list_outputs(fn(key, window, [value for value, _ in found]))

    return WindowContents(
        _alone,
        _appended,
        _together,
        emit,
        ElementsCodec(codec),
        by_time=not numbered,
        numbered=numbered,
        collects=True,
    )


def count_since_result(contents: WindowContents) -> WindowContents:
    """Wrap contents so that they count the rows since the last result."""
    first, add, merge, emit = contents.first, contents.add, contents.merge, contents.emit

    def counted(rows: int, held: Any) -> tuple[int, Any] | None:
        return None if held is None else (rows, held)

    def together(one: tuple[int, Any], other: tuple[int, Any]) -> Any:
        return counted(one[0] + other[0], None if merge is None else merge(one[1], other[1]))

    return replace(
        contents,
        first=lambda item: counted(1, first(item)),
        add=lambda acc, item: counted(acc[0] + 1, add(acc[1], item)),
        merge=None if merge is None else together,
        emit=lambda key, window, acc: emit(key, window, acc[1]),
        codec=CountedCodec(contents.codec),
    )


def windowed(key: Any, window: Window, value: Any) -> Sequence[Any]:
    """Return the result unchanged, with its key and its window."""
    return [Windowed(key, window, value)]


def _itself(value: Any) -> Any:
    return value


def _alone(element: Element) -> list[Element]:
    return [element]


def _appended(elements: list[Element], element: Element) -> list[Element]:
    elements.append(element)  # in place, see ``WindowContents``: copying the list for each row would be quadratic
    return elements


def _together(first: list[Element], second: list[Element]) -> list[Element]:
    return [*first, *second]
