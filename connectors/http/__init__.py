"""Requests to a receiver over HTTP: ``HttpSink``, whose rows are sent when their epoch is decided.

Rule: ``client`` is the only module that sends a request, ``answers`` the only one that says what an answer means. Rows
are staged, undone and kept apart as files are, by what ``files`` has for it.
"""

from __future__ import annotations

from kafka_eos.connectors.http.sink import HttpSink

__all__ = ["HttpSink"]
