"""Asynchronous requests: rows that wait for responses of an external service.

    pending_rows      the waiting rows, the order in which they are emitted, and the watermarks behind them
    request_loop      the requests: attempts, timeouts and the breaker, on an event loop beside the worker's thread
    thread_pool       threads for ordinary functions
    loop_watchdog     detects a blocked event loop
    async_map, cached_async_map   the operators

Rule: only the worker's thread handles rows, batches and state; the event loop handles values and responses.
"""
