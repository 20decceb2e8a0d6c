"""Requests to an HTTP receiver: ``HttpSink``, whose rows are sent when their epoch is decided.

Rule: only ``client`` sends requests, and only ``responses`` classifies responses. ``_outbox`` keeps rows until their
epoch is decided.
"""

from __future__ import annotations

from kafka_eos.connectors.http.sink import HttpSink

__all__ = ["HttpSink"]
