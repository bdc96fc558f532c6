"""Compiles the hot modules with mypyc when it can, and builds the same package interpreted when it cannot.

RABBITPY_COMPILE   unset  compile into a wheel; without a C compiler, or when compiling fails: warn and go on interpreted
                   0      never compile
                   1      compile, and fail when that fails

An editable install stays interpreted unless RABBITPY_COMPILE=1. The .py files of compiled modules stay in the wheel beside
the extension modules: for reading, for tracebacks, and for `import` where the extension modules do not fit.
Everything else about the package stands in pyproject.toml.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.dist import Distribution

ROOT = Path(__file__).parent

# The hot modules. They import each other, so they form one group: calls inside a group are plain C calls.
HOT = (
    "message.py",
    "errors.py",
    "destination.py",
    "events/*.py",
    "wire/*.py",
    "storage/*.py",
    "queues/*.py",
    "routing/*.py",
    "vhost.py",
    "protocol/*.py",
)
NOT_HOT = (
    "*/__init__.py",  # empty
    "events/files.py",  # as the next
    "storage/files.py",  # all its time is the disk's, and tests replace it
    "wire/methods.py",  # subclasses and introspects pamqp, and is not on the hot path
)

# A shared library's functions could be replaced by others of the same name, so that without the first two nothing that is
# exported is inlined. The limit is twice gcc's own; clang ignores it. `perf.hot_path` gains up to a tenth.
INLINE = ("-fno-semantic-interposition", "-fvisibility=hidden", "--param=max-inline-insns-auto=60")

# What builds or fills a wheel. Commands that only ask for metadata must not wait for a compiler.
COMPILING_COMMANDS = {"bdist_wheel", "bdist_egg", "build", "build_ext", "install"}
EDITABLE_COMMANDS = {"develop", "editable_wheel"}


def hot_modules() -> list[str]:
    package = ROOT / "rabbitpy_broker"
    files = {file for pattern in HOT for file in package.glob(pattern)}
    files -= {file for pattern in NOT_HOT for file in package.glob(pattern)}
    return sorted(str(file.relative_to(ROOT)) for file in files)


def is_compiling_wanted() -> bool:
    wish = os.environ.get("RABBITPY_COMPILE", "")
    if wish not in ("", "0", "1"):
        raise SystemExit(f"RABBITPY_COMPILE must be 0, 1 or unset, not {wish!r}")
    commands = COMPILING_COMMANDS | (EDITABLE_COMMANDS if wish == "1" else set())
    return wish != "0" and not commands.isdisjoint(sys.argv)


def check_compiler() -> None:
    """Builds an empty extension module; raises what the compiler, or its absence, raises."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "empty.c")
        source.write_text("#include <Python.h>\nPyMODINIT_FUNC PyInit_empty(void) { return NULL; }\n")
        command = build_ext(Distribution({"ext_modules": [Extension("empty", [str(source)])]}))
        command.build_lib = command.build_temp = folder
        command.ensure_finalized()
        command.run()


def compiled_modules() -> list[Extension]:
    from mypyc.build import mypycify

    # A type error ends a build only where it stands in a hot module: the libraries of the others are not installed
    # where the package is built. The strict check, of everything, is a step of .ci/run.
    options = ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent"]
    extensions = mypycify(
        [*options, *hot_modules()],
        opt_level="3",
        debug_level="0",
        multi_file=False,
        group_name="rabbitpy_broker",
    )
    if sys.platform != "win32":
        for extension in extensions:
            extension.extra_compile_args.extend(INLINE)
    return extensions


def main() -> None:
    if is_compiling_wanted():
        try:
            check_compiler()
            setup(ext_modules=compiled_modules())
            return
        # Missing mypyc, a missing or broken compiler, a type error (mypyc exits) or a C error (setup exits): the
        # package works without all of them, and what it was is printed.
        except (Exception, SystemExit) as error:
            if os.environ.get("RABBITPY_COMPILE") == "1":
                raise
            print(
                f"\n*** rabbitpy-broker: compiling failed: {type(error).__name__}: {error}\n"
                "*** Building the INTERPRETED package: it works the same, several times slower. Install a C compiler\n"
                "*** and Python's headers (Debian: gcc, python3-dev) and install again; `rabbitpy-broker --version`\n"
                "*** says which build runs.\n",
                file=sys.stderr,
            )
    setup()


main()
