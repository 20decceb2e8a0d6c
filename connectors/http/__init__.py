"""Requests to a receiver over HTTP: ``HttpSink``, whose rows are sent when their epoch is decided.

Rule: ``client`` is the only module that sends a request, ``answers`` the only one that says what an answer means. How
rows wait for their epoch is in ``outbox``.
"""

from __future__ import annotations

from kafka_eos.connectors.http.sink import HttpSink

__all__ = ["HttpSink"]
