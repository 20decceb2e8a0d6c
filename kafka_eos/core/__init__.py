"""Terms that every room uses: ids, errors, records, provenance, limits, and whose fault an exception is."""
