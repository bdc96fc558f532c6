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


def build() -> str:
    """The word "compiled" or "interpreted"."""
    return "compiled" if is_compiled() else "interpreted"


def python() -> str:
    """The interpreter: "CPython 3.11.2", and where it could run threads without the GIL that, and whether it does."""
    name = f"{platform.python_implementation()} {platform.python_version()}"
    if not sysconfig.get_config_var("Py_GIL_DISABLED"):
        return name
    is_gil_on = getattr(sys, "_is_gil_enabled", lambda: True)()
    return f"{name}, free-threaded, GIL on" if is_gil_on else f"{name}, free-threaded"


def describe() -> str:
    """One line: version, build, interpreter."""
    return f"rabbitpy-broker {__version__} ({build()}, {python()})"
