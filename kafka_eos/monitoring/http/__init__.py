"""The HTTP server of jobs and of ``kafka-eos ui``: connections, bounds, and who is answered.

Rule: it knows neither metrics nor pages; they are routes that its callers give it.
"""
