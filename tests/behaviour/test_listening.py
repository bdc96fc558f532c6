"""Addresses that cannot be had: one line that says so, and nothing left behind."""

from __future__ import annotations

import asyncio
import socket

import pytest

from rabbitpy_broker.config import NetConfig
from rabbitpy_broker.errors import StartError
from rabbitpy_broker.net.listener import Listeners, bind, shown


def test_an_address_of_somebody_else_is_refused_and_the_others_are_given_back() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ours = bind(["127.0.0.1:0"])
        address = shown(ours[0])
        ours[0].close()
        with pytest.raises(StartError, match=rf"cannot listen on {shown(taken)}: Address already in use"):
            bind([address, shown(taken)])
        bind([address])[0].close()


async def test_who_is_second_to_listen_is_told_so() -> None:
    """Two may bind an address that nobody listens on yet."""
    ours = bind(["127.0.0.1:0"])
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(ours[0].getsockname())
        other.listen()
        listeners = Listeners(_ClientsOn(asyncio.get_running_loop()))  # type: ignore[arg-type]
        with pytest.raises(StartError, match=r"cannot listen on 127\.0\.0\.1:\d+: Address already in use"):
            await listeners.start_on(NetConfig(), ours, [])
        assert ours[0].fileno() == -1


class _ClientsOn:
    """As much of the clients as listening needs."""

    accepting = True
    handshake_timeout_s = 1.0

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
