"""Messages and what happens to them, as data in Spark: sources, a sink and jobs; see docs/pipeline.md.

The daemon imports nothing of this, and this nothing of the daemon but the layout of the event journal.
"""
