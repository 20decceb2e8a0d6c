"""The axes of a chart: the positions of numbers, and ticks at round numbers.

Pure. Rule: an axis covers all values, and ends at a round number or at the last value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

Tick = tuple[float, str]
"""The position of a tick, and its label."""


@dataclass(frozen=True, slots=True)
class Axis:
    """An axis from 0 to ``most`` with ``length`` in the picture."""

    most: float
    length: float

    def __call__(self, value: float) -> float:
        return round(value / self.most * self.length, 1) if self.most else 0.0

    def ticks(self, wanted: int) -> list[Tick]:
        """Return round numbers from 0 on, at most ``wanted`` steps."""
        step = round_step(self.most, wanted)
        count = int(self.most / step + 1e-9)
        return [(self(i * step), _written(i * step, step)) for i in range(count + 1)]


def up_to_a_round_number(most: float, length: float, wanted: int) -> Axis:
    """Create an axis that ends at its first round number not below ``most``."""
    step = round_step(most, wanted)
    return Axis(math.ceil(most / step - 1e-9) * step, length)


def round_step(most: float, wanted: int) -> float:
    """Return 1, 2 or 5 times a power of ten: the smallest with which ``wanted`` steps reach ``most``. 1 if that is
    0.
    """
    if most <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(most / wanted))
    return next(times * power for times in (1, 2, 5, 10) if times * power * wanted >= most * (1 - 1e-9))


def _written(value: float, step: float) -> str:
    places = max(0, -math.floor(math.log10(step) + 1e-9))
    return f"{value:,.{places}f}".replace(",", "\u202f")
