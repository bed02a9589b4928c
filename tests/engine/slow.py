"""A device whose weights arrive slowly, so that a load can be seen."""

import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.engine.serving import free_port

THROTTLE = Path(__file__).with_name("throttle.py")


class Slow:
    """Started by being made; `rate` in bytes per second. Whoever makes it closes it."""

    def __init__(self, rpc_server: str, rate: float, log_file: Path) -> None:
        target, self.port = free_port(), free_port()
        relay = [sys.executable, str(THROTTLE), str(self.port), str(target), str(rate)]
        with log_file.open("ab") as log:
            common: dict[str, Any] = {
                "stdin": subprocess.DEVNULL,
                "stderr": log,
                "start_new_session": True,
            }
            server = [rpc_server, "-H", "127.0.0.1", "-p", str(target)]
            self._server = subprocess.Popen(server, stdout=log, **common)
            self._relay = subprocess.Popen(relay, stdout=subprocess.PIPE, **common)
        assert self._relay.stdout is not None
        assert self._relay.stdout.readline() == b"listening\n"

    @property
    def engine(self) -> dict[str, Any]:
        """What `[engine]` says to use it."""
        return {"rpc": [f"127.0.0.1:{self.port}"]}

    def lift(self) -> None:
        """From now on at full speed."""
        self._relay.send_signal(signal.SIGUSR1)

    def close(self) -> None:
        """Ends both."""
        for process in (self._relay, self._server):
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
