"""Compiles the hot modules with mypyc when it can, and builds the same package interpreted when it cannot.

RABBITPY_COMPILE   unset  compile into a wheel; without a C compiler, or when compiling fails: warn and go on interpreted
                   0      never compile
                   1      compile, and fail when that fails

An editable install stays interpreted unless RABBITPY_COMPILE=1. The .py files of compiled modules stay in the wheel beside
the extension modules: for reading, for tracebacks, and for `import` where the extension modules do not fit.
How the C is cut, and what each of that gains, is told in docs/decisions/0016-how-the-c-is-cut.md. Compiling prints a line
every few seconds. pip shows them only with -v, but turns its spinner with each.

Everything else about the package stands in pyproject.toml.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

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
    "durable_queues.py",
    "vhost.py",
    "protocol/*.py",
    # what lists and tables ask of each queue
    "management/api/kept_rows.py",
    "management/api/live_cells.py",
    "management/api/plain_rows.py",
    "management/api/queue_series.py",
    "management/api/rates.py",
)
NOT_HOT = (
    "*/__init__.py",  # empty
    "events/files.py",  # as the next
    "storage/files.py",  # all its time is the disk's, and tests replace it
    "storage/memory_disk.py",  # as the other disk
    "storage/restoring.py",  # as the next
    "storage/snapshot.py",  # now and then, in a thread; its manifest is a msgspec.Struct, which no build environment has
    "wire/methods.py",  # subclasses and introspects pamqp, and is not on the hot path
)

# The group is compiled in these parts, side by side, each as one C file: a call within a part may be inlined, one to another
# part is a plain call. What is named nowhere belongs to the core, so that what is new is not slow for having been forgotten.
# In this order: the longest first.
CORE = "core"  # what every message passes, but for the disk
PARTS = {
    "storage": ("storage.*", "events.*"),
    CORE: (),
    # what a message meets only where somebody has asked for it
    "features": (
        "queues.*browse",
        "queues.activity",
        "queues.dead*",
        "queues.deduplication",
        "queues.delay*",
        "queues.handover",
        "queues.moving",
        "queues.priority_queue",
        "queues.quorum_queue",
        "queues.tap",
        "routing.consistent_hash",
        "routing.delayed",
        "routing.equality",
        "routing.headers",
        "routing.random_choice",
        "routing.super_stream",
        "wire.delay_header",
        "wire.edit_header",
        "wire.field_table",
        "wire.properties",
    ),
    # what is done to connections, queues and exchanges, not to messages
    "control": (
        "durable_queues",
        "errors",
        "protocol.*_methods",
        "protocol.firehose",
        "protocol.handshake",
        "protocol.life",
        "protocol.session",
        "queues.arguments",
        "queues.memory_monitor",
        "queues.queue_factory",
        "queues.queue_settings",
        "vhost",
    ),
    "management": ("management.*",),
}

# A shared library's functions could be replaced by others of the same name, so that without the first two nothing that is
# exported is inlined. The limit is twice gcc's own; clang ignores it. `perf.hot_path` gains up to a tenth.
INLINE = ("-fno-semantic-interposition", "-fvisibility=hidden", "--param=max-inline-insns-auto=60")
# gcc looks up the column of every `if` for this warning, each time from the start of the file: a third of all its time.
NO_LOOKING_BACK = "-Wno-misleading-indentation"

# Begins a part. What other parts define is hidden as well, or it would be reached by way of a table. A module's top level
# runs once: what is cold is compiled for size, and soon.
#
# What is freed while fifty others are being freed waits its turn in a list that goes through the header that the cyclic collector
# has before its objects. mypyc has those of acyclic classes wait as well, which have none: what lies before them is overwritten.
PRELUDE = """\
#include <Python.h>
#include <CPy.h>
#undef CPy_TRASHCAN_BEGIN
#define CPy_TRASHCAN_BEGIN(op, dealloc) \\
    Py_TRASHCAN_BEGIN(op, (PyType_IS_GC(Py_TYPE(op)) ? (destructor)(dealloc) : (destructor)NULL))
#ifdef __GNUC__
#pragma GCC visibility push(hidden)
#endif
#include "__native_{group}.h"
#include "__native_internal_{group}.h"
#ifdef __GNUC__
#pragma GCC visibility pop
{cold}#endif
"""
TOP_LEVEL = re.compile(r"^char (CPyDef_\w+_____top_level__)\(void\) \{", re.MULTILINE)

# mypyc keeps one freed object of a class with a free list, as it does of each generator's. Those that ask for one with
# `free_list_len` get this many: docs/decisions/0029-freed-messages-are-kept.md. Where mypyc writes other C than these know, its
# own list stays.
FREE_LIST = 1_024
FROM_LIST = re.compile(
    r"if \((\w+)(?<!_gen)_free_instance != NULL\) \{\n\s*self = \1_free_instance;\n\s*\1_free_instance = NULL;"
)
INTO_LIST = re.compile(
    r"if \((\w+)(?<!_gen)_free_instance == NULL\) \{\n\s*\1_free_instance = self;(.*?)\n\s*return;", re.DOTALL
)
TAKE = r"if (\1_free_count > 0) {\n        self = \1_free_list[--\1_free_count];"
# What is cleared first may free others of the class, and they go before it.
KEEP = rf"""if (\1_free_count < {FREE_LIST}) {{\2
        if (\1_free_count < {FREE_LIST}) {{
            \1_free_list[\1_free_count++] = self;
            return;
        }}"""
LISTS = f"static CPyThreadLocal void *{{0}}_free_list[{FREE_LIST}];\nstatic CPyThreadLocal int {{0}}_free_count;\n"

Compile = Callable[..., list[str]]

GROUP = "rabbitpy_broker"
SIGN_OF_LIFE_SECONDS = 5.0

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
    print("rabbitpy-broker: translating Python to C", flush=True)
    group, *modules = mypycify(
        [*options, *hot_modules()],
        opt_level="3",
        debug_level="0",
        multi_file=True,
        group_name=GROUP,
    )
    group.depends = [*group.depends, *group.sources]
    group.sources = written_parts([with_free_lists(Path(source)) for source in group.sources])
    if sys.platform != "win32":
        # mypyc hands the same list to all extensions
        group.extra_compile_args = [*group.extra_compile_args, *INLINE, NO_LOOKING_BACK]
    return [group, *modules]


def with_free_lists(c_file: Path) -> str:
    """A file of mypyc's, or a copy in which the classes that have a free list keep more than one freed object."""
    text = c_file.read_text(encoding="utf-8")
    names = FROM_LIST.findall(text)
    if not names:
        return str(c_file)
    text = INTO_LIST.sub(KEEP, FROM_LIST.sub(TAKE, text))
    lists = "".join(map(LISTS.format, names))
    target = c_file.parent / "free_lists" / c_file.name
    target.parent.mkdir(exist_ok=True)
    write_if_new(target, text.replace("\n\n", f"\n\n{lists}\n", 1))
    return str(target)


def write_if_new(target: Path, text: str) -> None:
    """What is compiled from a file would seem old if the file were written again."""
    if not target.exists() or target.read_text(encoding="utf-8") != text:
        target.write_text(text, encoding="utf-8")


def part_of(module: str) -> str:
    """The part that a module, named without the package, belongs to."""
    for part, patterns in PARTS.items():
        if any(fnmatch(module, pattern) for pattern in patterns):
            return part
    return CORE


def written_parts(c_files: list[str]) -> list[str]:
    """Writes a C file for each part, which includes mypyc's file for each of its modules.

    Returns their paths, in an order that setuptools' sorting keeps.
    """
    prefix = f"__native_{GROUP}___"
    files: dict[str, list[str]] = {part: [] for part in PARTS}
    # What is no module's, mypyc's runtime for the most part, is the core's.
    files[CORE] = [file for file in c_files if not Path(file).stem.startswith(prefix)]
    for file in c_files:
        if file not in files[CORE]:
            files[part_of(Path(file).stem.removeprefix(prefix).replace("___", "."))].append(file)
    return [write_part(f"part{number}_{part}.c", paths) for number, (part, paths) in enumerate(files.items())]


def write_part(name: str, c_files: list[str]) -> str:
    folder = Path(os.path.commonpath(c_files))
    names = [Path(file).relative_to(folder).as_posix() for file in c_files]
    tops = [top for file in c_files for top in TOP_LEVEL.findall(Path(file).read_text(encoding="utf-8"))]
    cold = "".join(f"extern __attribute__((cold)) char {top}(void);\n" for top in tops)
    text = PRELUDE.format(group=GROUP, cold=cold) + "".join(f'#include "{name}"\n' for name in names)
    target = folder / name
    write_if_new(target, text)
    return str(target)


class BuildOnAllCores(build_ext):
    """Builds the extensions side by side, and the files of one extension as well."""

    def build_extensions(self) -> None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        self.parallel = self.parallel or cores
        compile_files: Compile = self.compiler.compile
        self.compiler.compile = partial(compile_side_by_side, compile_files, self.parallel)
        super().build_extensions()


def compile_side_by_side(compile_files: Compile, cores: int, sources: list[str], **options: Any) -> list[str]:
    """As `compile_files`, the compiler's own method; says what is done, and that it goes on, where that takes its time."""
    began = time.monotonic()
    with ThreadPoolExecutor(cores) as pool:
        objects = [pool.submit(compile_files, [source], **options) for source in sources]
        while waiting := wait(objects, SIGN_OF_LIFE_SECONDS).not_done:
            done, seconds = len(sources) - len(waiting), time.monotonic() - began
            print(f"rabbitpy-broker: {done} of {len(sources)} C files compiled, {seconds:.0f} s", flush=True)
        return [name for done in objects for name in done.result()]


def main() -> None:
    if is_compiling_wanted():
        try:
            check_compiler()
            setup(ext_modules=compiled_modules(), cmdclass={"build_ext": BuildOnAllCores})
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
