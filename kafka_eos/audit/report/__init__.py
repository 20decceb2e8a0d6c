"""The results of an audit as text, JSON and HTML."""
