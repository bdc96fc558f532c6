"""Where the control socket is: for the broker that binds it, and for `rabbitpy-ctl` that connects to it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

SOCKET_NAME: Final = "control.sock"
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
