"""What the pipeline says when it cannot do what it was asked."""

from __future__ import annotations


class PipelineError(Exception):
    """The text is for whoever started the job; there is no fault in our code behind it."""
