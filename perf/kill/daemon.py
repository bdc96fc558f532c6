"""The broker that is killed: started again and again on one data directory, with one log for all starts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perf.kill.ledger import Violation
from perf.load.client import Address

START_TIMEOUT = 120.0
STOP_TIMEOUT = 60.0
CHECK_TIMEOUT = 300.0
POLL_SECONDS = 0.005
DYING_SECONDS = 5.0  # from the end of its sockets to the end of the process
INVARIANT_BROKEN = 70  # its exit code, with --check-invariants


class Daemon:
    def __init__(self, command: Sequence[str], folder: Path, config: Path | None = None) -> None:
        self.command = list(command)
        self.folder = folder
        self.data_dir = folder / "data"
        self.log_file = folder / "broker.log"
        self.config = config
        self.process: subprocess.Popen[bytes] | None = None
        self.address = Address("127.0.0.1", 0, "guest", "guest", "/")
        self.ended_by_us = False
        self._log_start = 0

    def launch(self) -> None:
        """Starts the process; it may not listen yet."""
        options = [
            "--data-dir",
            str(self.data_dir),
            "--listen",
            "127.0.0.1:0",
            "--metrics-listen",
            "127.0.0.1:0",
        ]
        options += ["--log-format", "json"]
        if self.config:
            options += ["--config", str(self.config)]
        self.ended_by_us = False
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [*self.command, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start(self) -> float:
        """Returns when it listens: the milliseconds that took."""
        started = time.monotonic()
        self.launch()
        while not (found := self.events("broker started")):
            self.check_alive()
            if time.monotonic() - started > START_TIMEOUT:
                raise Violation(f"the broker did not start within {START_TIMEOUT:.0f} s:\n{self.log_end()}")
            time.sleep(POLL_SECONDS)
        host, _, port = found[0]["listeners"][0].rpartition(":")
        self.address = Address(host, int(port), "guest", "guest", "/")
        return (time.monotonic() - started) * 1000

    def check_alive(self) -> None:
        assert self.process is not None
        if self.process.poll() is not None:
            raise Violation(self._last_words("the broker ended by itself"))

    def end_by_itself(self) -> str | None:
        """What is to be said if the broker has ended by itself, or does so now; None if it goes on, or we have ended it.

        To be asked after a violation: most often the connections tell first, and only that they are gone.
        """
        if self.process is None:
            return None
        try:
            self.process.wait(DYING_SECONDS)
        except subprocess.TimeoutExpired:
            return None
        if self.ended_by_us and self.process.returncode != INVARIANT_BROKEN:
            return None
        return self._last_words("the broker ended by itself")

    def _last_words(self, what: str) -> str:
        assert self.process is not None
        code = self.process.returncode
        why = ": an invariant was broken" if code == INVARIANT_BROKEN else ""
        return f"{what}, exit code {code}{why}:\n{self.log_end()}"

    def kill(self) -> None:
        """SIGKILL, to all that the command has started; it must not have ended before."""
        assert self.process is not None
        self.check_alive()
        self.ended_by_us = True
        os.killpg(self.process.pid, signal.SIGKILL)
        if self.process.wait() != -signal.SIGKILL:
            raise Violation(self._last_words("the broker ended by itself"))
        self._check_log()

    def terminate(self) -> None:
        assert self.process is not None
        self.ended_by_us = True
        self.process.send_signal(signal.SIGTERM)

    def wait(self) -> None:
        """After `terminate`: it must end by itself, with exit code 0."""
        assert self.process is not None
        try:
            exit_code = self.process.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise Violation(f"no end within {STOP_TIMEOUT:.0f} s of SIGTERM:\n{self.log_end()}") from None
        if exit_code:
            raise Violation(self._last_words("the broker ended after SIGTERM"))
        self._check_log()

    def abandon(self) -> None:
        """At the end of it all, whatever happened."""
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def check(self) -> None:
        """The stopped data directory is sound."""
        done = subprocess.run(
            [*self.command, "check", str(self.data_dir)],
            capture_output=True, text=True, timeout=CHECK_TIMEOUT, check=False,
        )  # fmt: skip
        if done.returncode:
            raise Violation(f"check: exit code {done.returncode}\n{(done.stdout + done.stderr)[-8000:]}")

    def log_text(self) -> str:
        """What it has logged since it was started last."""
        with self.log_file.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def log_end(self) -> str:
        return self.log_text()[-4000:]

    def events(self, event: str = "") -> list[dict[str, Any]]:
        lines = [line for line in self.log_text().splitlines() if line.startswith("{") and line.endswith("}")]
        return [entry for entry in map(json.loads, lines) if not event or entry.get("event") == event]

    def recovery_ms(self) -> float | None:
        """How long the broker says that recovery took."""
        stores = self.events("store recovered")
        return round(sum(store["seconds"] for store in stores) * 1000, 1) if stores else None

    def _check_log(self) -> None:
        text = self.log_text()
        if "Traceback" in text or '"exception"' in text:
            raise Violation(f"the broker logged a traceback:\n{text[-8000:]}")
