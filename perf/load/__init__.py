"""A load generator for AMQP 0-9-1 brokers: `python -m perf.load --help`."""
