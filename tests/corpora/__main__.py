"""Try public corpora and print counts: ``make corpora``. What cannot be fetched is reported, and not tried.

Exit code 1: an outcome is wrong; each of these is printed.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from tests.corpora.checkouts import Corpus
from tests.corpora.file_trials import try_avro, try_parquet
from tests.corpora.outcomes import Outcome
from tests.corpora.text_trials import try_csv, try_json, try_json_schemas, try_protos

CORPORA: Final[Mapping[str, tuple[Corpus, Callable[[Path], Iterable[Outcome]]]]] = {
    "json": (
        Corpus("nst/JSONTestSuite", "1ef36fa01286573e846ac449e8683f8833c5b26a", ("test_parsing",)),
        try_json,
    ),
    "json-schema": (
        Corpus("json-schema-org/JSON-Schema-Test-Suite", "44401e0c046704b476ec9d2e2fccdaee618f259d", ("tests",)),
        try_json_schemas,
    ),
    "csv": (
        Corpus("max-mapper/csv-spectrum", "d30e80f8b99d2eecb3778f1d7b9ed1cb425502ec", ("csvs", "json")),
        try_csv,
    ),
    "avro": (Corpus("apache/avro", "87212a6d47247a30dff247d16386d722c56d4390", ("share/test",)), try_avro),
    "parquet": (
        Corpus("apache/parquet-testing", "1a2a75127be06fc0123f03ebd36c966f7beda27d", ("data", "bad_data")),
        try_parquet,
    ),
    "protobuf": (Corpus("googleapis/googleapis", "f8291d2b89f0017ab078a4c7378069bae5686f6f", (".",)), try_protos),
}


def main() -> int:
    """Return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpora", description=__doc__)
    parser.add_argument("corpora", nargs="*", metavar="CORPUS", help=f"{', '.join(CORPORA)} (default: all)")
    failed = 0
    for name in parser.parse_args().corpora or CORPORA:
        corpus, attempt = CORPORA[name]
        try:
            home = corpus.check_out()
        except OSError as error:
            print(f"{name}: not tried, {corpus.repository} cannot be fetched: {error}")
            continue
        print(f"{name}: {corpus.repository} at {corpus.commit[:12]}")
        counts, wrong = Counter[tuple[str, str]](), list[Outcome]()
        for outcome in attempt(home):
            counts[outcome.group, outcome.what] += 1
            wrong += [outcome] if outcome.wrong else []
        for (group, what), count in counts.items():
            print(f"  {count:6,}  {group}: {what}")
        for outcome in wrong:
            print(f"  WRONG {outcome.group}: {outcome.what}: {outcome.name}")
        failed += len(wrong)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
