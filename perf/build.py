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

CHECKOUT = Path(__file__).parent.parent
# In the order in which they import each other; they form one group, of which the first extension module holds the code.
GROUP = "perf_engine__mypyc"
MODULES = ("perf.driver", "perf.load.engine")
SETUP = f"""
from mypyc.build import mypycify
from setuptools import setup
options = ["--config-file=", "--ignore-missing-imports"]
files = {[module.replace(".", "/") + ".py" for module in MODULES]}
modules = mypycify([*options, *files], opt_level="3", debug_level="0", group_name={GROUP.removesuffix("__mypyc")!r})
setup(name="engine", packages=[], ext_modules=modules)
"""


class BuildFailed(Exception):
    """Compiling is not possible here; the text is the compiler's last words."""


def cache_dir() -> Path:
    """Where the tools keep what they built or downloaded; PERF_CACHE_DIR overrides it."""
    given = os.environ.get("PERF_CACHE_DIR")
    return Path(given) if given else platformdirs.user_cache_path("rabbitpy-broker-perf")


def source_of(module: str) -> Path:
    return CHECKOUT / (module.replace(".", "/") + ".py")


def extension_of(folder: Path, module: str) -> Path:
    """Where a build in `folder` has the extension module."""
    return folder / (module.replace(".", "/") + str(sysconfig.get_config_var("EXT_SUFFIX")))


def compiled_folder() -> Path:
    """The folder of the extension modules for these sources and this interpreter, whether it exists or not."""
    sources = b"".join(source_of(module).read_bytes() for module in MODULES)
    key = hashlib.sha256(sources + SETUP.encode() + sys.version.encode()).hexdigest()[:16]
    return cache_dir() / f"engine-{key}"


def compile_engine() -> Path:
    """Compiles unless it has been done; raises BuildFailed."""
    target = compiled_folder()
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        folder, result = Path(scratch, "source"), Path(scratch, "result")
        for module in MODULES:
            file = folder / source_of(module).relative_to(CHECKOUT)
            file.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source_of(module), file)
            (file.parent / "__init__.py").touch()
        command = [sys.executable, "-c", SETUP, "build_ext", "--inplace"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
        try:
            for module in (GROUP, *MODULES):
                extension_of(result, module).parent.mkdir(parents=True, exist_ok=True)
                extension_of(folder, module).replace(extension_of(result, module))
        except FileNotFoundError:
            words = (done.stderr or done.stdout).strip().splitlines()
            raise BuildFailed(words[-1] if words else f"exit code {done.returncode}") from None
        try:
            result.replace(target)  # in one step
        except OSError:
            if not target.exists():
                raise
            # another process has done the same meanwhile
    return target


def load_compiled(folder: Path) -> None:
    """Makes what is in `folder` the modules that `import` finds; nothing may have imported them before."""
    if imported := [module for module in MODULES if module in sys.modules]:
        raise RuntimeError(f"already imported: {', '.join(imported)}")
    for name in (GROUP, *MODULES):
        path = str(extension_of(folder, name))
        spec = importlib.util.spec_from_file_location(
            name, path, loader=importlib.machinery.ExtensionFileLoader(name, path)
        )
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


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
