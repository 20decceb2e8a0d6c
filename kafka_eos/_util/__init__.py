"""Helpers that belong to no other package: extras, secrets, logging set-up, failpoints, call sites, garbage
collection.

Rule: nothing here knows a pipeline, an epoch or a sink.
"""
