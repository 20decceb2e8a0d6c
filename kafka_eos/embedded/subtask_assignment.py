"""Assignment of subtasks to remote workers: as far as possible, a worker runs one whose state its machine has.

Rule: an assignment only saves transfers. Each worker verifies the files that it finds, and fetches the others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def keep_subtasks(connected: Sequence[int], count: int) -> Mapping[int, int]:
    """Return the new subtask of each old one below ``count``: those that are connected get the first ones.

    As many as possible keep theirs, because their state is where they run.
    """
    first = range(len(connected))
    kept = {subtask: subtask for subtask in connected if subtask in first}
    free = iter([*(subtask for subtask in first if subtask not in kept), *range(len(connected), count)])
    moved = [subtask for subtask in connected if subtask not in kept]
    missing = [subtask for subtask in range(count) if subtask not in connected]
    return kept | dict(zip([*moved, *missing], free, strict=True))


def match_local_state(local: Mapping[int, Collection[int]], opened: Mapping[int, Sequence[int]]) -> Mapping[int, int]:
    """Return the new subtask of each old one, so that little state is fetched.

    ``local``: by old subtask, the sizes of the files on the machine of its worker. ``opened``: by new subtask, the
    sizes of the files that it opens. The pair that saves most bytes comes first, and so on. Workers whose machine has
    nothing keep their subtask if it is free.
    """
    found = sorted(
        (-sum(size for size in sizes if size in has), old != new, old, new)
        for old, has in ((old, frozenset(sizes)) for old, sizes in local.items())
        for new, sizes in opened.items()
    )
    matched: dict[int, int] = {}
    taken: set[int] = set()
    for _, _, old, new in found:
        if old not in matched and new not in taken:
            matched[old] = new
            taken.add(new)
    return matched
