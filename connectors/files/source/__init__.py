"""The file source: listing, splits, and positions within a file."""
