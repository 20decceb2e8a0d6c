"""What a running job tells monitoring: its events summed up, under names, at one address.

Rule: it hears what observers hear and asks nobody. A job neither waits for it nor fails with it.
"""
