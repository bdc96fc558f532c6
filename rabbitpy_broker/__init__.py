"""A standalone AMQP 0-9-1 broker. `docs/architecture.md` draws the house; `broker.py` is its front door."""

from __future__ import annotations

__version__ = "0.1.0"
