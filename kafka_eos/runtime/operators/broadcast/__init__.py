"""Operators of a stream and a broadcast stream."""
