"""Found by Spark, which looks for modules of such names: makes format("rabbitpy-journal") known."""

from rabbitpy_broker.pipeline.journal.source import JournalSource as DefaultSource

__all__ = ["DefaultSource"]
