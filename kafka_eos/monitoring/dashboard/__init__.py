"""The dashboard: how the jobs of a machine stand and what happened to them, in a browser.

Rule: a page is made of what lies in a job's directory, so one that runs and one that has ended are shown by the same
code. Reading it changes nothing there.
"""
