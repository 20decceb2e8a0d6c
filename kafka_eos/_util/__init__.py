"""Helpers that belong to no room: optional extras, secrets, log set-up, failpoints, call sites, garbage collection.

Rule: nothing here knows a pipeline, an epoch or a sink.
"""
