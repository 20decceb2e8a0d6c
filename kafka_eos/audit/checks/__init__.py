"""The comparisons of an audit: expected rows against rows that were found, per sink."""
