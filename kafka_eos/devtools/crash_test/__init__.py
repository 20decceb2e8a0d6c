"""Crash tests: a real broker, a real job, real kills at every step, and an audit at the end.

``kafka-eos crash-test`` tests a user's pipeline, and ``kafka-eos demo`` the one of this package. Rule: every number
that is shown was measured in this run, and a planned fault that did not happen makes the result INVALID, never PASS.
"""
