"""Measures the product on this machine, beside a hand-written loop and, if wanted, beside another library.

Open ``run.py`` for throughput and ``recovery.py`` for the time after a kill.
"""
