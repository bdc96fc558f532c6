"""Places that the network between can be cut of: network namespaces, each with an address, joined by a bridge.

The command runs itself again in namespaces of its own (`enclosed`), as root or, where the system lets everybody make them, as
root of a user namespace. The bridge and the clients are there, and each server and broker in one more. All of it, processes too,
is gone when the command ends, however it does. A cut drops packets where they arrive, silently, as a network does: it needs
iptables. Where none of it can be had, everything runs on loopback addresses, and nothing can be cut.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence

from perf.engines.servers import Place

CLIENTS = "clients"
NET = "10.77.0"
ENCLOSED = "CLUSTER_KILL_ENCLOSED"
NAMESPACES = ("--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
TOOLS = ("unshare", "nsenter", "ip", "iptables", "mount")
FIRST_LOOPBACK = 11
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def enclosed() -> list[str] | None:
    """The words before a command that run it in namespaces of its own; None: that cannot be had."""
    if not all(shutil.which(tool, path=PATH) for tool in TOOLS):
        return None
    user = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    words = ["unshare", *user, *NAMESPACES]
    probe = "mount -t tmpfs tmpfs /run && ip link add probe type bridge && iptables -L INPUT"
    done = subprocess.run([*words, "sh", "-c", probe], capture_output=True, env={**os.environ, "PATH": PATH}, check=False)
    # The shell stays, as the first process of the namespace, which has to collect those that nobody else does.
    return [*words, "bash", "-c", '"$@"; exit $?', "enclosed"] if done.returncode == 0 else None


def is_enclosed() -> bool:
    return ENCLOSED in os.environ


def run_enclosed(command: Sequence[str]) -> int | None:
    """Runs the command in namespaces of its own and returns its exit code; None: there are none to be had."""
    words = enclosed()
    if words is None:
        return None
    return subprocess.run([*words, *command], env={**os.environ, "PATH": PATH, ENCLOSED: "1"}, check=False).returncode


class Network:
    """The places by name, and what is cut between them."""

    def __init__(self) -> None:
        self.can_cut = is_enclosed()
        self.places: dict[str, Place] = {}
        if self.can_cut:
            run("mount -t tmpfs tmpfs /run")
            run("mkdir /run/netns")
            run("ip link set lo up")
            run("ip link add hub type bridge")
            run(f"ip addr add {NET}.1/24 dev hub")
            run("ip link set hub up")
            self.places[CLIENTS] = Place(f"{NET}.1")

    def add(self, name: str) -> Place:
        number = FIRST_LOOPBACK + len(self.places)
        if not self.can_cut:
            self.places[name] = Place(f"127.77.0.{number}")
            return self.places[name]
        place = self.places[name] = Place(f"{NET}.{number}", ("nsenter", f"--net=/run/netns/{name}"))
        run(f"ip netns add {name}")
        run(f"ip link add {name} type veth peer name eth0 netns {name}")
        run(f"ip link set {name} master hub up")
        run(f"ip -n {name} addr add {place.host}/24 dev eth0")
        for link in ("lo", "eth0"):
            run(f"ip -n {name} link set {link} up")
        return place

    def cut(self, source: str, target: str) -> None:
        """What `source` sends does not reach `target` any more."""
        self._rule("-A", source, target)

    def mend(self, source: str, target: str) -> None:
        self._rule("-D", source, target)

    def _rule(self, what: str, source: str, target: str) -> None:
        rule = f"iptables -w {what} INPUT -s {self.places[source].host} -j DROP"
        run(" ".join((*self.places[target].inside, rule)))


def run(command: str) -> None:
    done = subprocess.run(command.split(), capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{command}: {done.stderr.strip()}")
