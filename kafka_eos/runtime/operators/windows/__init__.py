"""Windows: what a key has in each, when it is over.

    base       what all windows of event time do: rows that come too late, results, state
    alone      windows of one pane, which end for all keys at once: tumbling, calendar days
    paned      windows that share panes, or take late rows: sliding, early results, ``lateness``
    sessions   windows that follow from their rows, and become one
    counted    windows of so many rows, which know no time
    contents   what a window holds of its rows

Rule: a window has its result once, and leaves nothing behind.
"""
