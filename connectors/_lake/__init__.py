"""Shared parts of the sinks for lake tables: staged data files, and one commit to a table's log per epoch.

A lake table is a log of commits, each of which names data files. A writer stages data files that no commit names. The
commit of an epoch is one log entry that names them all and carries the epoch. It succeeds only if no other entry of
this incarnation was added meanwhile.
Rule: ``commit_status`` is pure and derives the status of a staged file; only ``file_names`` builds names;
``lake_table`` is the interface of a format, and ``file_store`` the storage of its files.
"""
