"""Takes the place of kafka-eos-native on the path of a contender that runs without it."""

raise ImportError("a benchmark leaves it out")
