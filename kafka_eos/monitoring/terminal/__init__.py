"""What a shell shows: messages, the live view of a running job, and how a run ends.

Rule: ``kafka-eos run orders.py`` and ``python orders.py`` look the same. So this room knows neither commands nor verbs.
"""
