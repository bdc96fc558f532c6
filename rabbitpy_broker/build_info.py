"""Which build of the package runs: with its hot modules compiled by mypyc, or interpreted.

One module stands for all, because setup.py compiles the hot modules together or not at all.
"""

from __future__ import annotations

import platform
import sys
import sysconfig

from rabbitpy_broker import __version__, message


def is_compiled() -> bool:
    """Whether the hot modules are extension modules."""
    return not (message.__file__ or "").endswith((".py", ".pyc"))


def threading_kind() -> str:
    """How this interpreter runs threads: "" with the GIL, as ever; else that it could do without, and whether it does."""
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return ""
    is_gil_on = getattr(sys, "_is_gil_enabled", lambda: True)()
    return ", free-threaded, GIL on" if is_gil_on else ", free-threaded"


def describe() -> str:
    """One line: version, build, interpreter."""
    build = "compiled" if is_compiled() else "interpreted"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    return f"rabbitpy-broker {__version__} ({build}, {python}{threading_kind()})"
