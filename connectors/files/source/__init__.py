"""The file source: listing, splits and positions in a file."""
