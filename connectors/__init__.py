"""Sources and sinks, one package per system. Import them as ``kafka_eos.connectors.<name>``.

Rule: the folder is at the top level so that it is easy to open, but it is imported through the package only. Under a
second name every class would exist twice.
"""

if __name__ != "kafka_eos.connectors":
    raise ImportError("import kafka_eos.connectors instead: the folder connectors/ is part of that package")
