"""Groups of ids, whose fingerprints are compared before single ids are.

Pure. Rule: if each input of a group has the expected number of outputs, and no other output is in the group, the sums
over the hashes of its ids agree. Only groups in which they do not agree are compared id by id.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

GROUPS: Final = 4096
"""The number of groups: a group that differs costs this part of a comparison of all ids."""
_CHANCE: Final = 6.0
"""Standard deviations by which the sizes of groups may differ from those of unique ids."""


@dataclass(frozen=True, slots=True)
class IdGroup:
    """The ids of inputs and of outputs with the same number modulo ``GROUPS``: how many, and sums over their hashes."""

    number: int
    inputs: int
    outputs: int
    sums: tuple[int, int]
    """Of inputs and of outputs, modulo 2 ** 64."""
    xors: tuple[int, int]

    def agrees(self, copies: int) -> bool:
        """Return whether each input has as many outputs as it should, ``copies``."""
        expected = copies * self.inputs, copies * self.sums[0] % (1 << 64), self.xors[0] if copies % 2 else 0
        return expected == (self.outputs, self.sums[1], self.xors[1])


def estimate_inputs_per_id(groups: Collection[IdGroup]) -> float | None:
    """Return the number of inputs with the id of an input, on average; None if ids may be unique.

    Hashes distribute unique ids so that the variance of the sizes of groups is their mean. Ids that have k inputs each
    make it k times as large.
    """
    inputs = sum(group.inputs for group in groups)
    if not inputs:
        return None
    found = sum(group.inputs**2 for group in groups) / inputs - inputs / GROUPS
    deviation = math.sqrt((2 + GROUPS / inputs) / GROUPS)
    return found if found > 1 + _CHANCE * deviation else None
