"""Output in a shell: messages, the live view of a running job, and the summary at its end.

Rule: ``kafka-eos run orders.py`` and ``python orders.py`` look the same. So this package imports no commands and no
pipeline API.
"""
