from __future__ import annotations

import dataclasses
import json
import random
import sys
from itertools import islice

from tests.bombs import attack
from tests.bombs.kinds import KINDS

count, seed, *kinds = sys.argv[1:]
for kind in kinds or KINDS:
    print(kind, file=sys.stderr, flush=True)
    outcome = attack(islice(KINDS[kind](random.Random(int(seed))), int(count)))
    print(json.dumps({"kind": kind, **dataclasses.asdict(outcome)}), flush=True)
