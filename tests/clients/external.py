"""Clients that are not Python packages: what they are built with, where they are kept, and how they are run.

Each is installed once into a directory of its own under RABBITPY_TEST_CACHE, named after a digest of the files that pin its
versions: changed pins make a new directory, and a directory with the mark `complete` in it is never touched again. A lock file
lets parallel test runs share it. A missing tool skips the test, or fails it where RABBITPY_REQUIRE_CLIENTS is set, as in CI.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from cutting_proxy import CuttingProxy

HERE = Path(__file__).parent
INSTALL_TIMEOUT = 600.0
RUN_TIMEOUT = 90.0


def require_tools(*names: str) -> None:
    """Skips the test, or fails it under RABBITPY_REQUIRE_CLIENTS, when a command is not on the PATH."""
    missing = [name for name in names if shutil.which(name) is None]
    if not missing:
        return
    text = f"needs {' and '.join(missing)}, which this machine does not have"
    if os.environ.get("RABBITPY_REQUIRE_CLIENTS", "0") not in ("", "0"):
        pytest.fail(text)
    pytest.skip(text)


def cache_directory() -> Path:
    configured = os.environ.get("RABBITPY_TEST_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "rabbitpy-tests"


def installed(name: str, sources: Sequence[Path], install: Callable[[Path], None]) -> Path:
    """The directory that `install` filled for exactly these source files; filled now when it is not there yet."""
    digest = hashlib.sha256()
    for source in sources:
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    directory = cache_directory() / f"{name}-{digest.hexdigest()[:16]}"
    directory.parent.mkdir(parents=True, exist_ok=True)
    with directory.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "complete").exists():
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir()
            for source in sources:
                shutil.copy(source, directory)
            install(directory)
            (directory / "complete").touch()
    return directory


def run_install(command: Sequence[str], directory: Path) -> None:
    """Runs an installer in `directory`; fails with all it printed when it does not succeed."""
    # Java takes the home from the user database, where a user of a container may have none; all others take HOME.
    env = {"MAVEN_OPTS": f"-Duser.home={Path.home()}", **os.environ}
    done = subprocess.run(command, cwd=directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, timeout=INSTALL_TIMEOUT, env=env)
    assert done.returncode == 0, f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout[-6000:]}"


def run_client(
    command: Sequence[str], env: Mapping[str, str] | None = None, timeout: float = RUN_TIMEOUT
) -> subprocess.CompletedProcess[str]:
    """Runs a client to its end; stdout and stderr apart."""
    try:
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout,
                              env={**os.environ, **(env or {})})
    except subprocess.TimeoutExpired as hung:
        output = b"".join(part for part in (hung.stdout, hung.stderr) if isinstance(part, bytes))
        pytest.fail(f"{' '.join(command[-12:])} did not end within {timeout} s:\n{output.decode(errors='replace')[-4000:]}")


def run_and_cut(command: Sequence[str], proxy: CuttingProxy, timeout: float) -> dict[str, str]:
    """Runs a client whose cases must all be ok; cuts what goes through `proxy` whenever it prints "cut me"."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(timeout, process.kill)
    watchdog.start()
    errors: list[str] = []
    with process:
        assert process.stdout is not None and process.stderr is not None
        reader = threading.Thread(target=lambda: errors.append(process.stderr.read()))
        reader.start()
        last = ""
        for last in process.stdout:
            if last.strip() == "cut me":
                proxy.cut()
        reader.join()
    watchdog.cancel()
    assert last.startswith("{"), f"no verdict, exit code {process.returncode}, last line {last!r}:\n{errors[0][-4000:]}"
    verdict: dict[str, str] = json.loads(last)
    assert {case: outcome for case, outcome in verdict.items() if outcome != "ok"} == {}
    assert process.returncode == 0
    return verdict


def verdicts(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    """The last line a client script printed: a JSON object of case -> "ok" or what went wrong."""
    lines = done.stdout.strip().splitlines()
    assert lines, f"no verdict, exit code {done.returncode}:\n{done.stderr[-4000:]}"
    verdict: Any = json.loads(lines[-1])
    assert isinstance(verdict, dict), lines[-1]
    return verdict
