"""Connections of workers by TCP: encrypted, and authenticated before the first frame."""
