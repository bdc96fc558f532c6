"""Found by Spark, which imports all modules of such names when a format is looked up: makes format("amqp") known."""

from rabbitpy_broker.pipeline.amqp.source import AmqpSource as DefaultSource

__all__ = ["DefaultSource"]
