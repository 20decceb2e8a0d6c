"""Nexmark: ``python -m benchmarks.nexmark``. ``queries/`` has one pipeline a file, ``expected.py`` the same in SQL."""
