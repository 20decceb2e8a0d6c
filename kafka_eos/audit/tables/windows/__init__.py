"""What windows of event time, and joins, should have made: computed again from the input, and not by their operators.

    judged      which operators and sinks can be judged, and what else the job tells: how far event time had come
    unfired     timers of which the newest checkpoint says that they were still to fire
    late        which rows were late, as far as outputs tell
    assign      which windows a row is in, in Spark SQL
    rows        the user's functions, as they run inside Spark's Python workers
    joined      which rows of two streams belong together, in Spark SQL
    pairs       the user's functions of joins, as they run there
    sequences   what patterns find, and the user's functions of them, as they run there
    recompute   puts these together

Rule: nothing of the operators is used: no pane, no timer, no watermark, no merge; only what a verb says that a window
holds (``Contents``), which are the user's functions. A window is all rows between two times that were not late, put
together one by one in the order in which they were read.
"""
