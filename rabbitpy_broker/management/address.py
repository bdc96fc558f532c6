"""Where the control socket is: for the broker that binds it, and for `rabbitpy-ctl` that connects to it.

    DIR/control.sock                    in the data directory DIR, where that can be
    RUNTIME/rabbitpy-broker/HASH.sock   where DIR's file system takes no sockets, as some that containers mount; HASH is DIR's
    the setting `control_socket`        if there is one, and nowhere else

Wherever else than in DIR it is, DIR/control.json says so, or why there is none: rabbitpy-ctl needs to know DIR only.

What must stay true: who connects elsewhere than in DIR makes sure that the user is at the other end whom DIR names; and nobody
but its owner can put anything into the folder that a socket is in, unless the place was set.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import socket
import stat
import struct
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

SOCKET_NAME: Final = "control.sock"
POINTER_NAME: Final = "control.json"
RUNTIME_FOLDER: Final = "rabbitpy-broker"
PATH_MAX_BYTES: Final = 100  # of a socket's address; 104 on some systems, 108 on Linux


class SocketAddress:
    """A socket's path as the address to bind or to connect to, while this is entered.

    One that is too long for an address goes through /proc, where the system has that.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def __enter__(self) -> str:
        if len(os.fsencode(self._path)) <= PATH_MAX_BYTES:
            return str(self._path)
        self._fd = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        return f"/proc/self/fd/{self._fd}/{self._path.name}"

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def places(directory: Path, setting: str, environ: Mapping[str, str] = os.environ) -> Iterator[Path]:
    """Where the socket of the broker on this data directory may be, the best place first."""
    if setting:
        yield Path(setting).expanduser()
        return
    yield directory / SOCKET_NAME
    name = hashlib.sha256(os.fsencode(directory.resolve())).hexdigest()[:16] + ".sock"
    if environ.get("XDG_RUNTIME_DIR"):
        yield Path(environ["XDG_RUNTIME_DIR"]) / RUNTIME_FOLDER / name
    yield Path("/run") / RUNTIME_FOLDER / name
    yield Path(tempfile.gettempdir()) / f"{RUNTIME_FOLDER}-{os.getuid()}" / name


def make_private_folder(folder: Path) -> None:
    """Makes the folder that a socket is to be in, if it is not there. Raises OSError, also when it is not ours alone."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise OSError(errno.EPERM, "the folder is not for its owner alone")


def write_pointer(directory: Path, path: Path | None, reason: str) -> None:
    """Says in the data directory where the socket is, or why there is none. Raises OSError."""
    partial = directory / f"{POINTER_NAME}.new"
    pointer = {"socket": None if path is None else str(path), "uid": os.getuid(), "reason": reason}
    partial.write_text(json.dumps(pointer), encoding="utf-8")
    partial.chmod(0o600)
    partial.replace(directory / POINTER_NAME)


def remove_pointer(directory: Path) -> None:
    """Raises OSError."""
    (directory / POINTER_NAME).unlink(missing_ok=True)


class Found(NamedTuple):
    """Where the socket of a broker is, and whose it must be (None: whoever could put it there); or why there is none."""

    path: Path
    uid: int | None
    reason: str


def find_socket(directory: Path) -> Found:
    """The socket of the broker on this data directory."""
    try:
        pointer = json.loads((directory / POINTER_NAME).read_bytes())
        path, uid, reason = pointer["socket"], int(pointer["uid"]), str(pointer["reason"])
    except (OSError, ValueError, KeyError, TypeError):  # there is none, which is the rule, or none of ours
        path, uid, reason = None, None, ""
    return Found(Path(path), uid, reason) if isinstance(path, str) else Found(directory / SOCKET_NAME, None, reason)


def peer_uid(connected: socket.socket) -> int | None:
    """The user at the other end, as the kernel says; None where only Linux could be asked."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])
