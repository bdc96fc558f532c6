"""What systemd is told by a service of type `notify`: that it is ready, that it lives, that it stops.

One datagram to the socket that NOTIFY_SOCKET names; without that nobody wants to know. A message that cannot be sent is lost: if
that matters, systemd acts by its own clock.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

READY: Final = "READY=1"
STOPPING: Final = "STOPPING=1"
ALIVE: Final = "WATCHDOG=1"


def notify(message: str, environ: Mapping[str, str] = os.environ) -> None:
    """Sends a message; does nothing where no systemd has started us."""
    address = environ.get("NOTIFY_SOCKET", "")
    if address.startswith("@"):
        address = "\0" + address[1:]
    if address:
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as to_systemd:
            to_systemd.setblocking(False)
            to_systemd.sendto(message.encode(), address)


def watchdog_s(environ: Mapping[str, str] = os.environ) -> float:
    """Seconds between two signs of life, twice as often as is asked for; 0.0: nobody looks."""
    usec = environ.get("WATCHDOG_USEC", "")
    is_ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
    return int(usec) / 2e6 if usec.isascii() and usec.isdecimal() and is_ours else 0.0
