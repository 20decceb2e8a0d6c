"""The PostgreSQL sink: staged rows or prepared transactions, and their commit."""
