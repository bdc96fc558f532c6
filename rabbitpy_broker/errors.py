"""The two errors that end something on the wire, and the reply codes they carry.

A `ChannelClosed` (a soft error) ends one channel, a `ConnectionClosed` (a hard error) the whole connection. Both are
raised where the fault is found and turned into `channel.close` or `connection.close` in one place,
`protocol/connection.py`. `ConfigError` and `StartError` end the start of the daemon with one line and exit code 2.

The reply text sent to the client is `NAME - text`, as RabbitMQ sends it (AMQP 0-9-1, section 1.2, constants).
"""

from __future__ import annotations

from typing import Final

REPLY_SUCCESS: Final = 200
CONTENT_TOO_LARGE: Final = 311
NO_ROUTE: Final = 312
CONNECTION_FORCED: Final = 320
INVALID_PATH: Final = 402
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
RESOURCE_LOCKED: Final = 405
PRECONDITION_FAILED: Final = 406
FRAME_ERROR: Final = 501
SYNTAX_ERROR: Final = 502
COMMAND_INVALID: Final = 503
CHANNEL_ERROR: Final = 504
UNEXPECTED_FRAME: Final = 505
RESOURCE_ERROR: Final = 506
NOT_ALLOWED: Final = 530
NOT_IMPLEMENTED: Final = 540
INTERNAL_ERROR: Final = 541

REPLY_NAMES: Final[dict[int, str]] = {
    CONTENT_TOO_LARGE: "CONTENT_TOO_LARGE",
    NO_ROUTE: "NO_ROUTE",
    CONNECTION_FORCED: "CONNECTION_FORCED",
    INVALID_PATH: "INVALID_PATH",
    ACCESS_REFUSED: "ACCESS_REFUSED",
    NOT_FOUND: "NOT_FOUND",
    RESOURCE_LOCKED: "RESOURCE_LOCKED",
    PRECONDITION_FAILED: "PRECONDITION_FAILED",
    FRAME_ERROR: "FRAME_ERROR",
    SYNTAX_ERROR: "SYNTAX_ERROR",
    COMMAND_INVALID: "COMMAND_INVALID",
    CHANNEL_ERROR: "CHANNEL_ERROR",
    UNEXPECTED_FRAME: "UNEXPECTED_FRAME",
    RESOURCE_ERROR: "RESOURCE_ERROR",
    NOT_ALLOWED: "NOT_ALLOWED",
    NOT_IMPLEMENTED: "NOT_IMPLEMENTED",
    INTERNAL_ERROR: "INTERNAL_ERROR",
}


class BrokerError(Exception):
    """Base of every error that the broker itself raises."""


class AmqpError(BrokerError):
    """An error with an AMQP reply code; `text` is without the leading name.

    `names_method`: the close frame names the method that was being carried out, if there was one.
    """

    def __init__(self, code: int, text: str, *, names_method: bool = True) -> None:
        super().__init__(f"{REPLY_NAMES.get(code, str(code))} - {text}")
        self.code = code
        self.text = text
        self.names_method = names_method

    def reply_text(self) -> str:
        """The text for the wire, cut to the 255 octets of a short string."""
        text = f"{REPLY_NAMES.get(self.code, str(self.code))} - {self.text}"
        encoded = text.encode("utf-8", "replace")
        return text if len(encoded) <= 255 else encoded[:252].decode("utf-8", "ignore") + "..."


class ChannelClosed(AmqpError):
    """A soft error: the channel is closed with this code, the connection lives on."""


class ConnectionClosed(AmqpError):
    """A hard error: the connection is closed with this code."""


class FramingLost(ConnectionClosed):
    """A hard error after which no later frame can be found, perhaps not even the peer's close-ok. It belongs to no method."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text, names_method=False)


class ConfigError(BrokerError):
    """A setting is unknown or has a bad value; the message names the key."""


class StartError(BrokerError):
    """The daemon cannot start: a port is in use, the data directory is locked or unreadable."""
