"""The dead letters of a job with their contents, for users who have the token.

Pure. Rule: bytes are shown as text or hex. The page only ever sets text, so no content is interpreted as markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kafka_eos._util.printable_text import printable
from kafka_eos.core.json_values import Json
from kafka_eos.core.record_preview import Excerpt
from kafka_eos.core.records import Rejection

_LINES = "\n\t"
"""Kept in a value and in an error, which a page shows with its lines."""


def build_dead_letters(refused: Mapping[str, Sequence[Rejection]]) -> list[Json]:
    """Build the JSON of refused records, one entry each."""
    return [_letter(source, refusal) for source, refusals in refused.items() for refusal in refusals]


def _letter(source: str, refusal: Rejection) -> Json:
    inside = refusal.inside
    return {
        "source": source,
        "where": refusal.where,
        "operator": refusal.operator,
        "error": printable(inside.error, _LINES),
        "timestamp": inside.timestamp if inside.timestamp != -1 else None,
        "key": _shown(inside.key),
        "value": _shown(inside.value),
        "headers": [{"name": printable(name), "value": _shown(value)} for name, value in inside.headers],
    }


def _shown(data: Excerpt | None) -> Json:
    """Return data as text or hex; None if there is none."""
    if data is None:
        return None
    text = data.text
    return {
        "text": None if text is None else printable(text, _LINES),
        "hex": data.start.hex(" ") if text is None else None,
        "size": data.size,
        "left_out": data.left_out,
    }
