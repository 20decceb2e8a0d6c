"""Sequences of rows of a key.

    machine     a pattern as a table, and what a row makes of the partial matches of its key
    operator    the operator: rows wait for event time, partial matches are state, time ends them

Rule: what matches depends on the rows of a key in the order of event time, and on nothing else.
"""
