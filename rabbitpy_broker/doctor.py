"""What `rabbitpy-broker doctor` looks at before somebody else does: the machine, the settings and the data directory.

Each check gives findings, in plain words: what is so, and for what is not well, what to change. Nothing is changed here but for a
file that is made in the data directory and removed, to see how long the disk takes.

What must stay true: a check that cannot look says so; none raises.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import resource
import shutil
import socket
import stat
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from rabbitpy_broker import build_info, process_memory
from rabbitpy_broker.config import Config, split_address

GOOD: Final = "ok"
POOR: Final = "warning"
BAD: Final = "error"

OPEN_FILES_GOOD: Final = 65_536
FILES_BESIDE_SOCKETS: Final = 1_000
SYNC_SLOW_MS: Final = 20.0
SYNCS: Final = 8
MEMORY_LOW_BYTES: Final = 256 * 2**20
CLOCK_UNSYNCHRONISED: Final = 5  # TIME_ERROR of adjtimex(2)
TIMEX_BYTES: Final = 256  # more than struct timex has
HUGE_PAGES: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")
YEAR_2024: Final = 1_704_067_200
NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs", "afs", "ceph", "glusterfs"})


class Finding(NamedTuple):
    """`advice` is "" where nothing is to be changed."""

    level: str
    topic: str
    text: str
    advice: str = ""


def examine(config: Config, file: Path | None = None) -> Iterator[Finding]:
    """All that there is to say. `file` is the configuration's."""
    data = config.node.data_path()
    owner = lock_owner(data)
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        check_build,
        lambda: check_files(config.net.connection_max),
        lambda: check_memory(config),
        lambda: check_disk(config, data),
        check_clock,
        lambda: check_ports(config, owner),
        lambda: check_permissions(config, data, file),
        lambda: check_kernel(config),
    )
    for check in checks:
        try:
            yield from check()
        except OSError as error:
            yield Finding(POOR, "doctor", f"could not look: {error}")


# -- the machine --------------------------------------------------------------------------------------------------------


def check_build() -> Iterator[Finding]:
    if build_info.is_compiled():
        yield Finding(GOOD, "build", build_info.describe())
    else:
        advice = "Install a wheel for this Python, or a C compiler and Python's headers, and install again."
        yield Finding(POOR, "build", "the interpreted build runs: it is several times slower", advice)


def check_files(connection_max: int, limit: int | None = None) -> Iterator[Finding]:
    """The hard limit counts: the broker raises the soft one itself."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if limit is None else limit
    needed = connection_max + FILES_BESIDE_SOCKETS
    advice = "Set LimitNOFILE= in the service's unit, --ulimit nofile= of the container, or nofile in /etc/security/limits.conf."
    if hard != resource.RLIM_INFINITY and hard < needed:
        text = f"{hard} open files are allowed, and connection_max = {connection_max} alone takes as many or more"
        yield Finding(BAD, "files", text, advice)
    elif hard != resource.RLIM_INFINITY and hard < OPEN_FILES_GOOD:
        yield Finding(POOR, "files", f"{hard} open files are allowed: that is few for sockets and queues", advice)
    else:
        yield Finding(GOOD, "files", f"{'any number of' if hard == resource.RLIM_INFINITY else hard} open files are allowed")


def check_memory(config: Config, available: int | None = None) -> Iterator[Finding]:
    there_is = process_memory.available() if available is None else available
    limit = config.alarms.memory_limit_bytes(there_is)
    text = f"{_size(there_is)} for this process, publishers are blocked from {_size(limit)} on"
    if there_is < MEMORY_LOW_BYTES:
        advice = "Give the machine or the container 512 MiB or more."
        yield Finding(POOR, "memory", text, advice)
    elif limit > there_is * 0.8:
        advice = "Set vm_memory_high_watermark to 0.4 to 0.6: above it a burst has the kernel end the broker."
        yield Finding(POOR, "memory", text, advice)
    else:
        yield Finding(GOOD, "memory", text)


def check_disk(config: Config, data: Path) -> Iterator[Finding]:
    there = _existing(data)
    free = shutil.disk_usage(there).free
    limit = config.alarms.disk_limit_bytes(process_memory.available())
    text = f"{_size(free)} free for {data}, publishers are blocked below {_size(limit)}"
    if free < limit:
        yield Finding(BAD, "disk", text, "Make room, or put data_dir on a larger disk.")
    elif free < 4 * limit:
        yield Finding(POOR, "disk", text, "Make room: what queues hold has to go somewhere.")
    elif limit < process_memory.available() // 4:
        advice = "Set disk_free_limit to some GB: paging a full memory to a nearly full disk ends in blocked publishers."
        yield Finding(POOR, "disk", text, advice)
    else:
        yield Finding(GOOD, "disk", text)
    kind = file_system(there)
    if kind in NETWORK_FILE_SYSTEMS:
        yield Finding(POOR, "disk", f"{there} is on {kind}", "Use a disk of this machine: locks and syncs are not safe there.")
    elif kind == "tmpfs":
        yield Finding(BAD, "disk", f"{there} is in memory (tmpfs): a reboot loses every message", "Set data_dir.")
    if os.access(there, os.W_OK):
        yield _sync_finding(there)


def _sync_finding(folder: Path) -> Finding:
    """How long a confirm has to wait for the disk."""
    times_ms = []
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".doctor.") as file:
        for _ in range(SYNCS):
            began = time.perf_counter()
            file.write(b"\0" * 4096)
            file.flush()
            os.fdatasync(file.fileno())
            times_ms.append((time.perf_counter() - began) * 1000)
    middle = statistics.median(times_ms)
    text = f"a sync takes {middle:.1f} ms, {max(times_ms):.1f} ms at most"
    if middle > SYNC_SLOW_MS:
        return Finding(POOR, "disk", text, "Each confirm waits for one: use a faster disk (SSD).")
    return Finding(GOOD, "disk", text)


def file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str:
    """The kind of file system that a path is on, "" where that is not known."""
    found, longest = "", 0
    try:
        lines = mounts.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return ""
    here = path.resolve()
    for line in lines:
        fields = line.split(" ")
        point = Path(fields[1].encode().decode("unicode_escape"))
        if here.is_relative_to(point) and len(point.parts) >= longest:
            found, longest = fields[2], len(point.parts)
    return found


def check_clock(state: int | None = None, now: float | None = None) -> Iterator[Finding]:
    if (time.time() if now is None else now) < YEAR_2024:
        yield Finding(BAD, "clock", "the clock is years behind", "Set it: certificates, tokens and expiries go by it.")
        return
    known = _clock_state() if state is None else state
    if known == CLOCK_UNSYNCHRONISED:
        advice = "Run chrony, ntpd or systemd-timesyncd, on the host of a container: tokens and times in messages go by it."
        yield Finding(POOR, "clock", "nothing keeps the clock right", advice)
    elif known < 0:
        yield Finding(POOR, "clock", "whether something keeps the clock right cannot be seen here")
    else:
        yield Finding(GOOD, "clock", "the clock is kept right")


def _clock_state() -> int:
    """What adjtimex(2) says; negative where it says nothing."""
    try:
        return int(ctypes.CDLL(None).adjtimex(ctypes.create_string_buffer(TIMEX_BYTES)))
    except (AttributeError, OSError):
        return -1


# -- settings -------------------------------------------------------------------------------------------------------------


def lock_owner(data: Path) -> str:
    """The process id of the broker that uses a data directory, "" when none does."""
    try:
        fd = os.open(data / "lock", os.O_RDONLY)
    except OSError:
        return ""
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "?"
    finally:
        os.close(fd)
    return ""


def check_ports(config: Config, owner: str) -> Iterator[Finding]:
    """Whether each address can be had; a broker that runs on the data directory has them already."""
    if owner:
        yield Finding(GOOD, "ports", f"process {owner} runs on this data directory: its ports are not looked at")
        return
    net = config.net
    for address in (*net.listeners, *net.listeners_ssl, *filter(None, (net.metrics_listen,))):
        host, port = split_address(address)
        yield _port_finding(address, host, port)
    if net.management_listen == "auto":
        yield _port_finding(f"the management API's port {config.management.tcp.port}", "", config.management.tcp.port)
    elif net.management_listen:
        yield _port_finding(net.management_listen, *split_address(net.management_listen))


def _port_finding(shown: str, host: str, port: int) -> Finding:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, port))
            tried.listen(1)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            advice = f"See who has it (ss -ltnp 'sport = :{port}'), or listen on another port."
            return Finding(BAD, "ports", f"{shown} is taken", advice)
        if error.errno == errno.EACCES:
            return Finding(BAD, "ports", f"{shown} is not allowed", "Ports below 1024 need a capability; use another one.")
        return Finding(BAD, "ports", f"{shown} cannot be had: {error.strerror}", "Name an address that this machine has.")
    return Finding(GOOD, "ports", f"{shown} is free")


def check_permissions(config: Config, data: Path, file: Path | None) -> Iterator[Finding]:
    if data.exists():
        about = data.stat()
        if about.st_uid != os.geteuid() and os.geteuid() != 0:
            yield Finding(BAD, "permissions", f"{data} is another user's", f"chown -R {os.geteuid()} {data}")
        elif stat.S_IMODE(about.st_mode) & 0o077:
            yield Finding(POOR, "permissions", f"others may look into {data}: messages and password hashes", f"chmod 700 {data}")
        else:
            yield Finding(GOOD, "permissions", f"{data} is for its owner only")
    elif not os.access(_existing(data), os.W_OK):
        yield Finding(BAD, "permissions", f"{data} cannot be made", "Make it, and give it to the user that the broker runs as.")
    secret = config.users.default_pass not in ("", "guest")
    if file is not None and secret and stat.S_IMODE(file.stat().st_mode) & 0o007:
        yield Finding(POOR, "permissions", f"everybody may read {file}, which has a password in it", f"chmod 640 {file}")
    for key in filter(None, (config.net.ssl_options.keyfile, config.management.ssl.keyfile)):
        yield _key_finding(Path(key))
    if os.geteuid() == 0:
        yield Finding(POOR, "permissions", "this is root", "Run the broker as a user of its own: it needs none of root's rights.")


def _key_finding(key: Path) -> Finding:
    if not os.access(key, os.R_OK):
        return Finding(BAD, "permissions", f"{key} cannot be read", "Give the key to the broker's user, or correct the setting.")
    if stat.S_IMODE(key.stat().st_mode) & 0o007:
        return Finding(POOR, "permissions", f"everybody may read the key {key}", f"chmod 640 {key}")
    return Finding(GOOD, "permissions", f"{key} is not for everybody")


def check_kernel(config: Config, sys: Path = Path("/proc/sys"), huge: Path = HUGE_PAGES) -> Iterator[Finding]:
    """Settings that cost connections, memory or time."""
    backlog, most = config.net.tcp_listen_options.backlog, _number(sys / "net/core/somaxconn")
    if most is not None and most < backlog:
        text = f"net.core.somaxconn is {most}, and tcp_listen_options.backlog {backlog}: bursts of clients are refused"
        yield Finding(POOR, "kernel", text, f"sysctl -w net.core.somaxconn={backlog}")
    if _number(sys / "vm/overcommit_memory") == 2:
        text = "vm.overcommit_memory is 2: memory may be refused while there is some"
        yield Finding(POOR, "kernel", text, "sysctl -w vm.overcommit_memory=0")
    swappiness = _number(sys / "vm/swappiness")
    if swappiness is not None and swappiness > 60:
        text = f"vm.swappiness is {swappiness}: a broker that is swapped out stands still"
        yield Finding(POOR, "kernel", text, "sysctl -w vm.swappiness=10")
    if "[always]" in _text(huge):
        text = "transparent huge pages are always used: memory that is free is given back late"
        yield Finding(POOR, "kernel", text, f"echo madvise > {huge}")
    keep = _number(sys / "net/ipv4/tcp_keepalive_time")
    if keep is not None and config.protocol.heartbeat == 0:
        text = f"heartbeat is 0: who has vanished is noticed after {keep} s, if at all"
        yield Finding(POOR, "kernel", text, "Set heartbeat = 60, or sysctl -w net.ipv4.tcp_keepalive_time=60.")
    yield Finding(GOOD, "kernel", "settings were looked at")


def _existing(path: Path) -> Path:
    """The path, or what there is of it."""
    here = path.absolute()
    return next(one for one in (here, *here.parents) if one.exists())


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path)
    return int(text) if text.isdecimal() else None


def _size(size: int) -> str:
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.0f} MiB"
