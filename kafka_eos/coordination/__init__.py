"""The parts that both engines share: terms, decisions, commits, recovery and retention. I/O around ``protocol``."""
