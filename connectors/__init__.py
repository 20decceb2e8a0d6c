"""Sources and sinks, one system a module. Import them as ``kafka_eos.connectors.<name>``.

Rule: the folder lies at the top, because it is one to open, and is reached through the package alone: under a second
name each class would be there twice.
"""

if __name__ != "kafka_eos.connectors":
    raise ImportError("import kafka_eos.connectors: the folder connectors/ is reached through the package alone")
