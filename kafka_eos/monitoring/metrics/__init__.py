"""Metrics of a running job: sums of its events, under names, at one address.

Rule: metrics are derived from the events that observers receive, and nothing else. A job neither waits for them nor
fails with them.
"""
