"""What sinks of databases share: the names of what is staged, and the writer.

Rule: nothing here knows a database or its client; what they differ in is a ``Holder``.
"""
