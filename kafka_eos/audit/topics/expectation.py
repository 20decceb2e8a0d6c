"""The number of outputs that is expected of an input, as SQL over the counts of an id.

Pure. Rule: what an expectation allows is no finding. The check that it leaves out is listed, with it as the reason.
"""

from __future__ import annotations

from dataclasses import dataclass

from kafka_eos.core.errors import ConfigError

_BY_ID = {"at-least-one": (1, None), "at-most-one": (0, 1), "one-per-id": (1, 1)}


@dataclass(frozen=True, slots=True)
class Expectation:
    """The least and the most outputs of each input, or of each id, however many inputs have it (``by_id``)."""

    least: int
    most: int | None
    by_id: bool

    @classmethod
    def parse(cls, text: str) -> Expectation:
        """Return the expectation that ``--expect`` names. Raise ConfigError if it names none."""
        if text in _BY_ID:
            return cls(*_BY_ID[text], by_id=True)
        count = "1" if text == "one" else text
        if not (count.isascii() and count.isdigit() and int(count)):
            known = ", ".join(("one", *_BY_ID))
            raise ConfigError(f"--expect is {known}, or a number of outputs of each input, not {text!r}")
        return cls(int(count), int(count), by_id=False)

    def lower_bound(self, inputs: str) -> str:
        """Return the SQL of the least outputs of an id with that many ``inputs``, an SQL expression."""
        return f"{self.least} * {self._scaled(inputs)}"

    def upper_bound(self, inputs: str) -> str:
        """Return the SQL of the most outputs of an id with that many ``inputs``; only if there is a limit."""
        return f"{self.most} * {self._scaled(f'greatest({inputs}, 1)')}"

    def _scaled(self, inputs: str) -> str:
        return f"least({inputs}, 1)" if self.by_id else inputs
