"""Plants the bug that ``PLANTED_BUG`` names into this Python process, before the program begins.

Rule: a process that should carry a bug and cannot does not run at all; a healthy one would prove nothing.
"""

import os
import traceback

if name := os.environ.get("PLANTED_BUG"):
    try:
        from tests.planted.catalogue import BUGS

        BUGS[name]()
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not run healthy
        traceback.print_exc()
        os._exit(99)
