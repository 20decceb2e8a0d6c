"""Joins of two streams with keys, in event time; and of a stream with a table, as its rows come.

    base       what all joins do: rows of both streams that wait, those that come too late, results
    interval   rows whose times are not too far apart
    windows    rows of one window
    table      each row with what a table has for its key

Rule of those in event time: nothing is emitted when a row comes. What a key has up to a time is joined when event time
has come to it, in an order that the rows themselves tell: so which stream came first changes nothing.
"""
