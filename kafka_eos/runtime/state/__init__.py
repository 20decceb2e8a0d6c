"""Keyed state: key groups, and the ``memory`` and ``rocksdb`` backends behind ``abc.StateBackend``."""
