"""Java on this machine, and the pinned jars that are downloaded for it."""
