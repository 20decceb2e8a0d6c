"""``python -m kafka_eos``: the same as the ``kafka-eos`` command."""

from kafka_eos.cli import main

main()
