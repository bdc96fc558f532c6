"""The life of a connection, as a table: its states, and the methods and events that lead from one state to another.

  header -> starting -> tuning -> opening -> running        the handshake (handshake.py does what each step asks for)

  closing   connection.close was sent: everything but close and close-ok is ignored
  silent    nothing is read any more; the peer has until the timer is over to hang up
  ending    nothing is read any more; the socket is closed behind the last output
  gone      the socket is closed

Nothing else moves a connection on, and `Connection._enter` allows no step that is not in LEADS_TO. Until tune-ok frames
are limited to `initial_frame_max`. A fault is answered by connection.close only from `opening` on, and for a refused
login to clients that ask for it. Before that the peer has not shown that it speaks AMQP: it hears nothing more and is
hung up on after three seconds, as RabbitMQ does.
"""

from __future__ import annotations

from typing import Final

from rabbitpy_broker.errors import ACCESS_REFUSED, AmqpError

HEADER: Final = "header"
STARTING: Final = "starting"
TUNING: Final = "tuning"
OPENING: Final = "opening"
RUNNING: Final = "running"
CLOSING: Final = "closing"
SILENT: Final = "silent"
ENDING: Final = "ending"
GONE: Final = "gone"

HANDSHAKE: Final = frozenset({HEADER, STARTING, TUNING, OPENING})
DEAF: Final = frozenset({SILENT, ENDING, GONE})  # nothing is read any more

# The state that a method on channel 0 leads to. Any other method in that state is an error, but ignored while closing.
BY_METHOD: Final[dict[str, dict[str, str]]] = {
    STARTING: {"Connection.StartOk": TUNING, "Connection.Close": SILENT},
    TUNING: {"Connection.TuneOk": OPENING, "Connection.Close": SILENT},
    OPENING: {"Connection.Open": RUNNING, "Connection.Close": SILENT},
    RUNNING: {"Connection.UpdateSecret": RUNNING, "Connection.Close": SILENT},
    CLOSING: {"Connection.Close": CLOSING, "Connection.CloseOk": ENDING},  # each side has closed, and waits for the other
}

# All steps, with those of other events: the protocol header, a fault, a close by an operator or the broker, the timer, the
# socket.
LEADS_TO: Final[dict[str, frozenset[str]]] = {
    HEADER: frozenset({STARTING, SILENT, ENDING, GONE}),
    STARTING: frozenset({TUNING, CLOSING, SILENT, ENDING, GONE}),
    TUNING: frozenset({OPENING, SILENT, ENDING, GONE}),
    OPENING: frozenset({RUNNING, CLOSING, SILENT, ENDING, GONE}),
    RUNNING: frozenset({RUNNING, CLOSING, SILENT, GONE}),
    CLOSING: frozenset({CLOSING, ENDING, GONE}),
    SILENT: frozenset({ENDING, GONE}),
    ENDING: frozenset({ENDING, GONE}),
    GONE: frozenset({GONE}),
}


def after_fault(state: str, error: AmqpError, *, wants_refusals: bool) -> str:
    """The state after a fault: CLOSING where the peer is told what was wrong, SILENT where it is not.

    `wants_refusals`: its capabilities have authentication_failure_close.
    """
    if state in (HEADER, TUNING):
        return SILENT
    if state == STARTING:
        return CLOSING if error.code == ACCESS_REFUSED and wants_refusals else SILENT
    return CLOSING
