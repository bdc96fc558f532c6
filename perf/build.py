"""Compiles the load generator's hot part with mypyc, once for each version of it, into the user's cache directory.

`ensure_compiled()` does that when it is needed; `python -m perf.build` does it ahead of a measurement and says where the
result lies. Without mypyc or a C compiler the generator runs interpreted, with a warning: it then costs several times the
CPU, which on a shared machine is taken from the broker.

Rejected: compiling on installation. The tools run from a checkout, which is not installed.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import platformdirs

MODULE = "perf.load.engine"
SOURCE = Path(__file__).parent / "load" / "engine.py"
SETUP = """
from mypyc.build import mypycify
from setuptools import setup
options = ["--config-file=", "--ignore-missing-imports"]
setup(name="engine", packages=[], ext_modules=mypycify([*options, "engine.py"], opt_level="3", debug_level="0"))
"""


class BuildFailed(Exception):
    """Compiling is not possible here; the text is the compiler's last words."""


def cache_dir() -> Path:
    """Where the tools keep what they built or downloaded; PERF_CACHE_DIR overrides it."""
    given = os.environ.get("PERF_CACHE_DIR")
    return Path(given) if given else platformdirs.user_cache_path("rabbitpy-broker-perf")


def compiled_path() -> Path:
    """The path of the extension module for this source and this interpreter, whether it exists or not."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    key = hashlib.sha256(SOURCE.read_bytes() + SETUP.encode() + sys.version.encode()).hexdigest()[:16]
    return cache_dir() / f"engine-{key}{suffix}"


def compile_engine() -> Path:
    """Compiles unless it has been done; raises BuildFailed."""
    target = compiled_path()
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        # By itself, outside its package, the module becomes a single extension that may be loaded under any dotted name.
        shutil.copy(SOURCE, folder)
        command = [sys.executable, "-c", SETUP, "build_ext", "--inplace"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        built = list(Path(folder).glob("engine*.so"))
        if done.returncode or not built:
            words = (done.stderr or done.stdout).strip().splitlines()
            raise BuildFailed(words[-1] if words else f"exit code {done.returncode}")
        built[0].replace(target)  # in one step: another process may be doing the same
    return target


def load_compiled(path: Path) -> None:
    """Makes `path` the module that `import perf.load.engine` finds; nothing may have imported it before."""
    if MODULE in sys.modules:
        raise RuntimeError(f"{MODULE} is already imported")
    loader = importlib.machinery.ExtensionFileLoader(MODULE, str(path))
    spec = importlib.util.spec_from_file_location(MODULE, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    loader.exec_module(module)


def ensure_compiled() -> bool:
    """Compiles and loads the hot part; False, with a warning on stderr, when it will run interpreted."""
    try:
        load_compiled(compile_engine())
    except BuildFailed as error:
        print(
            f"warning: the load generator runs interpreted and may be what limits the rate: {error}",
            file=sys.stderr,
        )
        return False
    return True


if __name__ == "__main__":
    try:
        print(compile_engine())
    except BuildFailed as failure:
        sys.exit(f"cannot compile the load generator: {failure}")
