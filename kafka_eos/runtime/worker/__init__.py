"""One worker's tasks: source readers, the operator chain, barriers and sinks."""
