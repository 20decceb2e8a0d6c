"""A process to kill: prepares one transaction, prints its producer id and epoch, then waits to be killed."""

from __future__ import annotations

import signal
import sys

from tests.broker.transaction_kit import prepared

if __name__ == "__main__":
    bootstrap, topic, transactional_id = sys.argv[1:]
    writer = prepared(bootstrap, topic, transactional_id=transactional_id)
    print(*writer.identity, flush=True)
    signal.pause()
