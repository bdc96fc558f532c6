"""The page's five minutes: its commands, as they stand there, in a shell."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cluster.engine_rigs import require
from perf.engines import postgres

ROOT = Path(__file__).parent.parent.parent
SECTION = "## Three nodes in five minutes"
PATIENCE = 240


def commands() -> str:
    """The indented lines of the section, up to the next heading."""
    text = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    section = text.split(SECTION)[1].split("\n##")[0]
    return "\n".join(line.removeprefix("    ") for line in section.splitlines() if line.startswith("    "))


@pytest.mark.timeout(2 * PATIENCE)
def test_the_five_minutes_work_as_they_stand():
    require(postgres.is_installed(), "PostgreSQL's server (apt-get install postgresql)")
    # Its ports are fixed: a network of its own keeps others out, where we may have one.
    alone = ["unshare", "--net", "--kill-child"] if os.geteuid() == 0 else []
    up = "ip link set lo up\n" if alone else ""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    folder = Path(tempfile.mkdtemp(prefix="rabbitpy-five-minutes-"))  # pytest's own is closed to the user of the servers
    folder.chmod(0o755)
    with (folder / "output").open("w") as output:
        done = subprocess.run(
            [*alone, "bash", "-c", f"set -e\n{up}{commands()}"],
            cwd=folder,
            env={**os.environ, "PATH": path, "PYTHONPATH": str(ROOT)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=PATIENCE,
        )
    said = (folder / "output").read_text()
    shutil.rmtree(folder)
    assert done.returncode == 0, said
    assert "orders, owner: node1, term: " in said
    assert "Nodes Away\n\nnode1\n" in said
    assert "\nfor life\n" in said
