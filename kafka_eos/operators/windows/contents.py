"""What a window may hold of its rows: one value, an accumulator, or all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kafka_eos.interfaces import Codec, Contents, Window, Windowed
from kafka_eos.schemas import Elements

Element = tuple[int, Any]
"""A row's time and its value."""


def reducing(fn: Callable[[Any, Any], Any], codec: Codec[Any]) -> Contents:
    """The values, made one by ``fn``."""
    return Contents(_itself, fn, fn, _result, codec)


def aggregating(
    create: Callable[[], Any],
    add: Callable[[Any, Any], Any],
    merge: Callable[[Any, Any], Any] | None,
    result: Callable[[Any], Any] | None,
    codec: Codec[Any],
) -> Contents:
    """An accumulator; ``result`` tells what is emitted of it, None emits it as it is."""

    def first(value: Any) -> Any:
        return add(create(), value)

    def emit(key: Any, window: Window, acc: Any) -> Sequence[Any]:
        return [Windowed(key, window, acc if result is None else result(acc))]

    return Contents(first, add, merge, emit, codec)


def all_elements(fn: Callable[[Any, Window, list[Any]], Iterable[Any]], codec: Codec[Any]) -> Contents:
    """All values, for ``fn``: in the order of their times, and those of one time in the order of their bytes."""

    def emit(key: Any, window: Window, elements: list[Element]) -> Sequence[Any]:
        found = sorted(elements, key=_time)
        times = [time for time, _ in found]
        if len(set(times)) < len(times):
            found.sort(key=lambda element: (element[0], codec.encode(element[1])))
        return list(fn(key, window, [value for _, value in found]))

    return Contents(_alone, _appended, _together, emit, Elements(codec), timed=True)


def _itself(value: Any) -> Any:
    return value


def _result(key: Any, window: Window, value: Any) -> Sequence[Any]:
    return [Windowed(key, window, value)]


def _time(element: Element) -> int:
    return element[0]


def _alone(element: Element) -> list[Element]:
    return [element]


def _appended(elements: list[Element], element: Element) -> list[Element]:
    elements.append(element)  # in place, see ``Contents``: a list that is copied for each row costs its square
    return elements


def _together(first: list[Element], second: list[Element]) -> list[Element]:
    return [*first, *second]
