"""Patterns: sequences of rows of a key.

    state_machine       a pattern as a transition table, and its partial matches
    pattern_operator    the operator: rows wait for event time, partial matches are state, and time limits end them

Rule: matches depend only on the rows of a key in the order of event time.
"""
