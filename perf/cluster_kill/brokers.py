"""The brokers of the cluster, each in its place; one that ends because its engine does not answer is started again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from perf.engines.servers import Place, free_ports
from perf.kill.ledger import Violation
from perf.load.client import Address

CANNOT_START = 2  # exit code of a broker that does not like what it finds
RETRY_S = 0.5
CTL_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 90.0  # also of one that sleeps meanwhile


class Broker:
    """One node. `wanted`: it is meant to run; `look_after` sees to it."""

    def __init__(
        self, name: str, folder: Path, place: Place, command: Sequence[str], ctl: Sequence[str], cluster: Mapping[str, object]
    ) -> None:
        self.name = name
        self.folder = folder
        self.place = place
        port = free_ports(1)[0]
        self.address = Address(place.host, port, "guest", "guest", "/")
        self.wanted = False
        self.paused = False
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._log = folder / f"{name}.log"
        self._log_start = 0
        self._not_before = 0.0
        self._ctl = list(ctl)
        data = folder / name
        data.mkdir()
        config = folder / f"{name}.toml"
        lines = [f"{key} = {json.dumps(value)}" for key, value in (*cluster.items(), ("node", name))]
        config.write_text("\n".join(("loopback_users = []", "[cluster]", *lines, "")))
        self._command = [
            *place.inside, *command, "--data-dir", str(data / "data"), "--listen", f"{place.host}:{port}", "--metrics-listen",
            f"{place.host}:0", "--management-listen", f"{place.host}:0", "--log-format", "json", "--config", str(config),
        ]  # fmt: skip
        self._data_dir = data / "data"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.starts += 1
        self.wanted = True

    def look_after(self) -> None:
        """Starts it again if it could not start. Raises `Violation` if it has ended otherwise."""
        if self.wanted and not self.running and time.monotonic() > self._not_before:
            assert self._process is not None
            if self._process.returncode != CANNOT_START:
                raise Violation(f"node {self.name} ended with {self._process.returncode}:\n{self.log_text()[-4000:]}")
            self._not_before = time.monotonic() + RETRY_S
            self.start()

    def is_up(self) -> bool:
        return self.running and not self.paused and bool(self.events("broker started"))

    def kill(self) -> None:
        self.wanted = self.paused = False
        if self.running:
            self._signal(signal.SIGKILL)
            assert self._process is not None
            self._process.wait()
        self.check_log()

    def begin_stop(self) -> None:
        """SIGTERM: it hands over what it owns, and ends."""
        self.wanted = False
        self._signal(signal.SIGTERM)

    def end_stop(self) -> None:
        """Returns when it has ended; for a thread. Raises `Violation` if it does not, or not as it should."""
        assert self._process is not None
        try:
            code = self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            why = f"node {self.name} has not stopped within {STOP_TIMEOUT_S:.0f} s"
            raise Violation(f"{why}:\n{self.log_text()[-4000:]}") from None
        if code:
            raise Violation(f"node {self.name} was to stop, and ended with {code}:\n{self.log_text()[-4000:]}")
        self.check_log()

    def lose_copies(self) -> None:
        """Removes what it has of the vhosts; it does not run."""
        shutil.rmtree(self._data_dir / "vhosts", ignore_errors=True)

    def pause(self) -> None:
        self.paused = True
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.paused = False
        self._signal(signal.SIGCONT)

    def abandon(self) -> None:
        """At the end of it all, whatever happened."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: signal.Signals) -> None:
        if self.running:
            assert self._process is not None
            os.killpg(self._process.pid, number)

    def ctl(self, *arguments: str) -> str:
        """Raises `subprocess.SubprocessError`."""
        words = [*self._ctl, "--data-dir", str(self._data_dir), *arguments]
        return subprocess.run(words, capture_output=True, text=True, check=True, timeout=CTL_TIMEOUT_S).stdout

    def log_text(self) -> str:
        """Since its last start."""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def events(self, name: str, *, ever: bool = False) -> list[dict[str, Any]]:
        """The log's lines of one event: since the last start, or all of them."""
        text = self._log.read_text(errors="replace") if ever else self.log_text()
        lines = [line for line in text.splitlines() if f'"{name}"' in line and line.startswith("{") and line.endswith("}")]
        return [entry for entry in map(json.loads, lines) if entry.get("event") == name]

    def check_log(self) -> None:
        """Raises `Violation` if it has logged a traceback since its last start."""
        text = self.log_text()
        if "Traceback" in text or '"exception"' in text:
            raise Violation(f"node {self.name} logged a traceback:\n{text[-8000:]}")
