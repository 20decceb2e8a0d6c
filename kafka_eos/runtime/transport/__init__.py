"""Connections of workers by TCP: authenticated before the first frame, and encrypted where there is a certificate."""
