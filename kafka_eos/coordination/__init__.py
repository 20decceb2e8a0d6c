"""What both engines share: terms, decisions, commits, recovery, retention. I/O around ``protocol``."""
