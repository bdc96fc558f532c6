"""Which build of the package runs: with its hot modules compiled by mypyc, or interpreted.

One module stands for all, because setup.py compiles the hot modules together or not at all.
"""

from __future__ import annotations

import platform

from rabbitpy_broker import __version__, message


def is_compiled() -> bool:
    """Whether the hot modules are extension modules."""
    return not (message.__file__ or "").endswith((".py", ".pyc"))


def describe() -> str:
    """One line: version, build, interpreter."""
    build = "compiled" if is_compiled() else "interpreted"
    return f"rabbitpy-broker {__version__} ({build}, {platform.python_implementation()} {platform.python_version()})"
