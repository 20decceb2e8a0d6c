"""Windows: the contents of each window of a key, and its result when it closes.

    window_operator      the base of event-time windows: late rows, results, state
    single_pane_windows  windows of one pane, which close for all keys at once: tumbling, calendar days
    paned_windows        windows that share panes, or accept late rows: sliding, early results, ``lateness``
    session_windows      windows that follow from their rows, and are merged
    count_windows        windows of a number of rows, without event time
    clock_triggers       results before the end, by processing time

Rule: a window emits its final result once, and leaves no state behind.
"""
