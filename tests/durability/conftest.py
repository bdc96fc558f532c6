"""The harness is a tool of the checkout and not part of the package that is installed."""

from __future__ import annotations

import sys
from pathlib import Path

# At the end: what is installed goes before what lies in the checkout.
sys.path.append(str(Path(__file__).parents[2]))
