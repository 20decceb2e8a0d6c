"""Shared parts of the database sinks: names of staged data, and the writer.

Rule: nothing here knows a database or its client; ``RowStaging`` covers their differences.
"""
