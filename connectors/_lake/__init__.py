"""What sinks for tables of a lake have in common: staged data files, and one commit of a table's log an epoch.

Such a table is a log of commits, each of which names data files. A writer stages data files that no commit names; the
commit of an epoch is one entry of the log that names them all and carries the epoch, and it is taken only if nobody
else has added an entry of this life meanwhile.
Rule: ``standings`` is pure and decides what becomes of a staged file; ``names`` alone forms names; ``tables`` is what a
format has to offer, and ``stores`` where files lie.
"""
