"""Links between nodes end when the other machine does not answer, and not while it does."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.engine_rigs import require
from perf.cluster_kill.network import PATH
from rabbitpy_broker.cluster.link_life import TCP_INFO, is_unheard

HERE = Path(__file__).parent


@pytest.mark.parametrize(
    ("probes", "unacked", "silent_ms", "is_over"),
    [
        (0, 0, 60_000, False),  # nothing under way: the system asks
        (0, 3, 60_000, True),
        (0, 3, 100, False),
        (1, 0, 60_000, False),  # the other end reads nothing, and its system has been asked just now
        (2, 0, 60_000, True),
    ],
)
def test_what_counts_are_answers_of_the_other_system(probes: int, unacked: int, silent_ms: int, *, is_over: bool):
    info = struct.pack("=3xB20xI28xI", probes, unacked, silent_ms)
    assert len(info) == TCP_INFO.size
    assert is_unheard(info, 8.0) is is_over


def test_links_behind_a_cut_end_and_full_ones_do_not():
    """In a network of its own."""
    alone = ["unshare", *([] if os.getuid() == 0 else ["--user", "--map-root-user"]), "--net"]
    env = {**os.environ, "PATH": PATH}
    may = all(shutil.which(tool, path=PATH) for tool in ("unshare", "ip", "iptables"))
    require(may and subprocess.run([*alone, "iptables", "-L"], check=False, env=env).returncode == 0, "iptables, and namespaces")
    done = subprocess.run(
        [*alone, sys.executable, str(HERE / "links_behind_a_cut.py")],
        stdout=subprocess.PIPE, timeout=120, text=True, check=True, env=env,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith(("open:", "ended:"))]
    assert lines == ["open: idle busy full", "ended: idle", "ended: busy"]
