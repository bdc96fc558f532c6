"""Found by Spark, which imports all modules of such names when a format is looked up: makes format("amqp") known.

Without the extra `spark` there is no such format, and Spark finds the others.
"""

import contextlib

with contextlib.suppress(ModuleNotFoundError):
    from rabbitpy_broker.pipeline.amqp.source import AmqpSource as DefaultSource

    __all__ = ["DefaultSource"]
