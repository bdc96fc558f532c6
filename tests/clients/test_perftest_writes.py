"""PerfTest with confirms against queues in all modes, and what the daemon writes for it: the system calls, by strace.

In the consumer-ack modes nothing of a tiny message goes to the disk: no write to the journal, the segments or a message
store, and no sync, from its publish to its confirm.
"""

from __future__ import annotations

import shlex
from pathlib import Path

import pika
import pytest
from perftest_runner import perftest_jars, run_perftest

from behaviour.test_sync_before_confirm import FILE_WRITES, SENDS, SYNCS, Trace
from broker_process import BrokerProcess, broker_command
from support import eventually

pytestmark = [pytest.mark.own, pytest.mark.timeout(700)]  # the first run installs

MESSAGES = 2_000
WRITES = (*SENDS, *FILE_WRITES)


def definitions_written(trace: Trace) -> int:
    """How many calls have written or synced the definitions."""
    return sum(b"definitions" in call.file for call in trace.read_on())


@pytest.mark.parametrize("mode, written", [("consumer-ack", False), ("consumer-ack-light", False), ("persist", True)])
def test_tiny_messages_confirmed_by_acks_are_never_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, written: bool
) -> None:
    jars = perftest_jars()
    trace = Trace(tmp_path / "trace")
    names = ",".join((*WRITES, *SYNCS))
    strace = ["strace", "-D", "-f", "-y", "-xx", "-s", "16", "-e", f"trace={names}", "-o", str(trace.file)]
    broker = BrokerProcess(tmp_path)
    with monkeypatch.context() as patch:
        patch.setenv("RABBITPY_BROKER_COMMAND", shlex.join([*strace, *broker_command()]))
        broker.start()
    try:
        connection = pika.BlockingConnection(broker.parameters())
        channel = connection.channel()
        channel.queue_declare("q", durable=True, arguments={"x-confirm-mode": mode})
        eventually(lambda: definitions_written(trace) > 0)
        began = len(trace.calls)
        options = ["--predeclared", "-u", "q", "-e", "", "-k", "q", "--flag", "persistent", "-s", "100",
                   "-c", "100", "-q", "50", "-C", str(MESSAGES), "-D", str(MESSAGES)]  # fmt: skip
        outcome = run_perftest(jars, broker.url, options)
        outcome.assert_clean()
        assert outcome.peaks.get("nacked", 0) == 0
        # with at most 100 unconfirmed, the producer reached its count only because the others were confirmed
        assert "Producer reached message limit" in outcome.stopped_by, outcome.output
        assert broker.ctl("-q", "-s", "list_queues", "name", "publishes_waiting").split() == ["q", "0"]
        known = definitions_written(trace)
        channel.queue_declare("fence", durable=True)  # what strace has of that comes behind all the rest
        eventually(lambda: definitions_written(trace) > known)
        stored = [call for call in trace.calls[began:] if b"/vhosts/" in call.file]
        assert bool(stored) == written, stored[:3]
        connection.close()
    finally:
        broker.stop()
