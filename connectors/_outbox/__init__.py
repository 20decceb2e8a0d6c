"""Shared parts of ``http`` and ``idempotent``: rows wait on disk until their epoch is decided, and are sent then.

A receiver has no transaction that another process could commit. But it ignores a key that it knows, so rows that are
sent again have no effect.
Rule: nothing is sent before its epoch is decided, and nothing is deleted before the receiver has it. Rows are staged,
aborted and separated as ``files`` does it.
"""
