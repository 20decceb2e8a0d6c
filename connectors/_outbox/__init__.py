"""Rows that wait on a disk until their epoch is decided, and are sent then: what ``http`` and ``idempotent`` share.

A receiver has no transaction that another process could commit. But it does nothing under a key that it knows, so what
is sent again has no effect.
Rule: nothing is sent before its epoch is decided, and nothing is forgotten before the receiver has it. Rows are staged,
undone and kept apart as files are, by what ``files`` has for it.
"""
