"""Java on this machine: which one is used, and the pinned jars that are fetched for it."""
