"""The project's own performance tools; README.md says what each answers and how to run it.

They are run from the checkout, `python -m perf.TOOL`, and use the package that is installed.
"""

import sys
from pathlib import Path

# `python -m` puts the checkout first, where the package is not compiled; what is installed goes before it.
_ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [path for path in sys.path if Path(path).resolve() != _ROOT] + [str(_ROOT)]
