"""Three links in a network of their own, cut by iptables when one of them has been full for long: run by test_link_life.py.

Prints which of them were open before the cut, and which ended after it.
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
from typing import Any

import structlog
import uvloop

from rabbitpy_broker.cluster import link_life
from rabbitpy_broker.cluster.link_life import TCP_INFO, LinkLife

LEASE_S = 1.0


class Near(asyncio.Protocol):
    def __init__(self, name: str, ended: dict[str, asyncio.Event]) -> None:
        self._ended = ended[name] = asyncio.Event()

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()


async def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    link_life.SPARE_S, link_life.LOOK_S = 1.0, 0.1  # type: ignore[misc]
    loop = asyncio.get_running_loop()
    far = socket.create_server(("127.0.0.1", 0))  # it accepts nothing and reads nothing, and its system answers all the same
    life = LinkLife(LEASE_S, structlog.get_logger())
    watching = asyncio.create_task(life.run())
    ended: dict[str, asyncio.Event] = {}
    links: dict[str, Any] = {}
    for name in ("idle", "busy", "full"):
        links[name], _ = await loop.create_connection(lambda name=name: Near(name, ended), *far.getsockname())
        life.add(links[name])
    links["full"].write(bytes(50_000_000))
    while silent_ms(links["full"]) <= (LEASE_S + 1.0) * 1000:  # longer than what ends a link behind a cut
        await asyncio.sleep(0.02)
    await asyncio.sleep(0.3)  # for a look or two
    print("open:", *(name for name in links if not ended[name].is_set()))
    subprocess.run(["iptables", "-A", "INPUT", "-j", "DROP"], check=True)
    links["busy"].write(b"x")
    for name in ("idle", "busy"):  # what is full ends when its window is asked for again, some seconds later
        await asyncio.wait_for(ended[name].wait(), 60)
        print("ended:", name)
    watching.cancel()
    far.close()


def silent_ms(link: Any) -> int:
    info = link.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, TCP_INFO.size)
    return int(TCP_INFO.unpack_from(info)[2])


if __name__ == "__main__":
    uvloop.run(main())
