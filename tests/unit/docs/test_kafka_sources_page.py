"""docs/kafka-sources.md: its table says what comes out of each record."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from kafka_eos.core.records import RawRecord
from kafka_eos.testing import run_local
from tests.unit.docs.test_joins_page import cells_of

PAGE = (Path(__file__).parents[3] / "docs" / "kafka-sources.md").read_text(encoding="utf-8")
CODE, TABLE = re.findall(r"^```python\n(.*?)^```$\n.*?((?:^\|[^\n]*\n)+)", PAGE, re.MULTILINE | re.DOTALL)[0]


def test_the_table_is_what_comes_out() -> None:
    names: dict[str, Any] = {"__name__": "shown"}
    exec(CODE, names)
    _, lines = cells_of(TABLE)
    rows = [[cell.strip("`") for cell in line] for line in lines]
    records = [
        RawRecord(topic, 0, offset, -1, None, value.encode(), (("kind", kind.encode()),) if kind else ())
        for offset, (topic, kind, value, _) in enumerate(rows)
    ]

    out = run_local(names["pipeline"], {"orders": records})

    assert [str(value) for value in out["paid"]] == [said for *_, said in rows if said]
    assert all(names["orders"]._topics.select_topics([topic]) for topic, *_ in rows)
