"""A message, held as the slices of the stream it came in.

Nothing of a message is decoded on its way through. `address` is exchange and routing key as two short strings, just as
they stand next to each other in basic.publish and, again, at the end of basic.deliver; one bytes object is shared by
all messages with the same address. `content` is the content header frame and the one body frame behind it, less the
type and channel of the first:

  content = size(4) header payload CE | 03 channel(2) size(4) body CE        header_end = offset of the 03
  content = size(4) header payload CE                                        empty body: header_end = len(content)

The channel inside is the publisher's (or 0) and is written over on delivery. A body that came in several frames is
kept as one frame, however large, and cut again to the consumer's frame_max.

The header BCC is in the content like any other, since dead-lettering and delays ask for its keys later, but nobody is
shown it: whoever lets a client or an exchange see the header asks `wire/edit_header.py` for what may be seen.

A message is immutable but for `waiter` and its places in the stores once it is published, and is shared by every queue
it was routed to.
"""

from __future__ import annotations

from typing import Final

from mypy_extensions import i64, mypyc_attr


class ConfirmWaiter:
    """The object that is told what becomes of a message: the publishing channel's confirms, or who stands in for them.

    Each queue that answered WAITING to a publish calls `decided` exactly once.
    """

    def decided(self, ok: bool) -> None:
        """`ok` is False when the queue lost the message before anybody had it: the publisher then gets a basic.nack."""
        raise NotImplementedError


class NoResend(ConfirmWaiter):
    """The waiter of a message whose publisher would not publish it again: the publisher was told, or will be told by other
    means.

    It is set before the publish and does nothing when it is told. Its effect: the message is written even to a queue
    that promises only a consumer's ack.
    """

    def decided(self, ok: bool) -> None:
        pass


NO_RESEND: Final = NoResend()


class StoreEntry:
    """The place of a large message in the message store; `ref_count` counts the queues that hold the message.

    `file_num` is 0 until the message is written; `size` counts the bytes of the stored message.
    """

    def __init__(self, msg_id: bytes, size: i64) -> None:
        self.msg_id = msg_id
        self.size = size
        self.ref_count: i64 = 0
        self.file_num: i64 = 0
        self.offset: i64 = 0
        self.message: Message | None = None  # as long as the store must be able to give it without its file


@mypyc_attr(acyclic=True, free_list_len=1)
class Message:
    """One published message; see the top of this file for the two slices."""

    def __init__(self, address: bytes, content: bytes, header_end: i64, persistent: bool) -> None:
        self.address = address
        self.content = content
        self.header_end = header_end
        size: i64 = len(content) - header_end
        if size > 0:
            size -= 8  # the frame around it
        self.body_size = size
        self.persistent = persistent
        self.has_bcc = False  # True: it may have the header BCC
        self.expiration: i64 = -1  # ms that it may wait in a queue; -1: for ever
        self.waiter: ConfirmWaiter | None = None
        self.stored: StoreEntry | None = None  # in the persistent message store
        self.stored_transient: StoreEntry | None = None  # in the transient one

    def header_payload(self) -> bytes:
        """Class, weight, body size, flags and properties: the payload of the content header frame."""
        return self.content[4 : self.header_end - 1]

    def property_flags(self) -> i64:
        """The first word of them: which properties it has."""
        high: i64 = self.content[16]
        low: i64 = self.content[17]
        return high << 8 | low

    def body(self) -> bytes:
        """The body without its framing; empty when there is none."""
        return self.content[self.header_end + 7 : -1] if self.header_end < len(self.content) else b""

    def with_header(self, payload: bytes) -> Message:
        """The same message with another header payload."""
        header = len(payload).to_bytes(4, "big") + payload + b"\xce"
        changed = Message(self.address, header + self.content[self.header_end :], len(header), self.persistent)
        changed.has_bcc = self.has_bcc
        changed.expiration = self.expiration
        return changed
