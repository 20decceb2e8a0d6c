"""The PostgreSQL source: the rows of a table as of the first start, read in ranges of a key."""
