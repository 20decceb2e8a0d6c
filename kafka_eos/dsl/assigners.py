"""Windows and triggers as users make them: those of ``interfaces``, whose errors tell the user's line here."""

from __future__ import annotations

from kafka_eos import interfaces
from kafka_eos.dsl.lines import quoting

tumbling = quoting(interfaces.tumbling)
sliding = quoting(interfaces.sliding)
days = quoting(interfaces.days)
session = quoting(interfaces.session)
rows = quoting(interfaces.rows)
global_ = quoting(interfaces.global_)
on_count = quoting(interfaces.on_count)
on_clock = quoting(interfaces.on_clock)
