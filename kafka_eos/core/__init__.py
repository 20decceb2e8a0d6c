"""Basic types of all packages: ids, errors, records, provenance, limits, and fault attribution of exceptions."""
