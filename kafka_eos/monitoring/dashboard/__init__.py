"""The dashboard: the state and history of the jobs of a machine, in a browser.

Rule: a page is built from the files in a job's directory, so the same code shows running and ended jobs. Reading
changes nothing there.
"""
