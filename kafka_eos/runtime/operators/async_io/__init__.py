"""Rows that wait for answers from outside.

    held        which rows wait, in which order they are handed on, and the watermarks behind them
    asking      the requests: tries, timeouts, the breaker, on an event loop beside the worker's thread
    threads     where ordinary functions wait
    beat        whether the event loop goes round, and who keeps it if it does not
    async_map   the operator

Rule: only the worker's thread knows rows, batches and state; beside it there are values and answers.
"""
