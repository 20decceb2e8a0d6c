"""The outputs of a user function.

Rule: an iterable that was not meant as several outputs is rejected: a text, a dict, a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import GeneratorType
from typing import Any, Final

from kafka_eos.codecs.type_inspection import is_model
from kafka_eos.core.error_messages import UnfitValue, show_value

_USUAL: Final = frozenset((list, tuple, GeneratorType))


def list_outputs(made: Any) -> list[Any]:
    """List a function's outputs. Raises UnfitValue for anything else, and the errors of a generator."""
    return list(expect_outputs(made))


def expect_outputs(made: Any) -> Iterable[Any]:
    """Return a function's outputs as they are. Raises UnfitValue for anything else."""
    if type(made) not in _USUAL and not _several(made):
        shown = "None" if made is None else f"{show_value(made, 80)} of type {type(made).__name__}"
        raise UnfitValue(
            f"outputs must be returned as a list ([] for none) or with yield; the function returned {shown}"
        )
    outputs: Iterable[Any] = made
    return outputs


def _several(made: Any) -> bool:
    one = isinstance(made, str | bytes | Mapping) or is_model(type(made)) or hasattr(made, "_fields")
    return isinstance(made, Iterable) and not one
