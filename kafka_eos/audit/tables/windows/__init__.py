"""Expected results of event-time windows, joins and patterns, recomputed from the input without their operators.

    judgeable_windows   the operators and sinks that can be judged, and the watermarks in the newest checkpoint
    pending_timers      timers that were still pending in the newest checkpoint
    late_rows           rows that were late, according to outputs
    window_assignment   the windows of a row, in Spark SQL
    window_rows         the user's functions, as they run inside Spark's Python workers
    join_sql            matching rows of two streams, in Spark SQL
    join_results        the user's functions of joins, as they run there
    pattern_results     the matches of patterns, and the user's functions of them, as they run there
    window_recompute    combines these

Rule: nothing of the operators is used: no pane, no timer, no watermark, no merge; only what an operation says that a
window holds (``WindowContents``), which are the user's functions. A window is all rows between two times that were not
late, put together one by one in the order in which they were read.
"""
