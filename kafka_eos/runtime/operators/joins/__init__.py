"""Joins of two keyed streams in event time, and of a stream with a table.

    join_operator   the base: waiting rows of both streams, late rows, results
    interval_join   rows whose times are within an interval
    window_join     rows of one window
    as_of_join      rows with the version of a table at their time
    table_join      rows with the current value of a table

Rule of joins in event time: the arrival of a row emits nothing. Rows up to a time are joined when the watermark reaches
it, in an order that follows from the rows: so the order between the streams has no effect.
"""
