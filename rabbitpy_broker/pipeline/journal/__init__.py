"""The event journal as data: a source for Spark, and what is made of its events."""
