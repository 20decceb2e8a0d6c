"""Imports the mutant that ``MUTANT_SOURCE`` names in the processes that a test starts, before their program begins.

Rule: a process that should have the mutant and cannot does not run at all.
"""

import os
import traceback

if os.environ.get("MUTANT_SOURCE"):
    try:
        from tests.mutation.instead import import_mutant

        import_mutant()
    except BaseException:  # noqa: BLE001 - whatever it is, this process must not run without the mutant
        traceback.print_exc()
        os._exit(99)
