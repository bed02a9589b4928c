"""The care for one llama-server: how far it is, when it is ready, how it is stopped, why it ended.

Three sharp edges of the engine shape this (seen on b11434). With LLAMA_SERVER_ROUTER_PORT set it
prints its progress, but then it ends as soon as its stdin does, and SIGTERM hangs: so we hold its
stdin and ask it by a line. A stop that comes in the moment it gets ready is lost, with and without
the protocol: so we ask twice. While it loads it has no signal handler and nothing to lose.

Must not: require the protocol, which is internal to llama.cpp; without it, `/health` tells.
"""

import contextlib
import json
import os
import signal
import subprocess
from collections import deque
from collections.abc import Sequence

from pannier.fleet.launcher_care import EXIT_NOT_STARTED, Care
from pannier.fleet.launcher_loop import Loop
from pannier.fleet.launcher_memory import MemoryLines, with_memory_lines
from pannier.fleet.launcher_output import Lines
from pannier.fleet.launcher_probe import Probe, bytes_read, names_alias, oom_kills, owns_port
from pannier.fleet.launcher_report import Reporter
from pannier.fleet.launcher_words import (
    EXIT_COMMAND,
    PROGRESS,
    STAGES,
    TAIL_LINES,
    complains,
    fraction,
    out_of_memory,
    progress,
    readable,
    why,
)

SAMPLE_S = 0.2
KILL_WHILE_LOADING_S = 0.5
ASK_AGAIN_S = 1.0
AT_ONCE_S = 1.0
READY_LINE_S = 1.0
"""How long a 200 waits for the engine's own ready line: they come in the same millisecond."""

MEMORY_LINES_S = 0.3
"""How long after ready lines of the load may still come: the engine logs from a thread."""

REPORTED_TAIL = 20
META_LIMIT = 16 * 1024

_PROGRESS_LINE = 256 * 1024
_LOG_LINE = 2048


class Engine(Care):
    """Owns one llama-server and tells Pannier about it."""

    def __init__(
        self,
        loop: Loop,
        command: Sequence[str],
        *,
        instance: str,
        socket_path: str,
        port: int,
        stop_timeout: float,
    ) -> None:
        super().__init__(loop, command, stop_timeout=stop_timeout)
        self._port = port
        self._started = loop.time()
        self._ready_said = False
        self._healthy_at: float | None = None
        self._oom_kills = oom_kills()
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._complaints: deque[str] = deque(maxlen=TAIL_LINES)
        self._memory: MemoryLines | None = MemoryLines()
        self._stdout, self._stderr = Lines(_PROGRESS_LINE), Lines(_LOG_LINE)
        self._probe = Probe(loop, port, self._on_answer)
        self._state: dict[str, object] = {
            "v": 1,
            "instance": instance,
            "launcher": os.getpid(),
            "pid": None,
            "port": port,
            "phase": "starting",
            "stages": [],
            "stage": None,
            "value": None,
            "rchar": None,
            "progress_lines": False,
            "meta": None,
            "memory": None,
            "engine": None,
            "elapsed_s": 0.0,
            "ready_s": None,
            "exit": None,
        }
        self._reporter = Reporter(loop, socket_path, self._line)

    def _line(self) -> bytes:
        """The full state as one line."""
        if self._state["exit"] is None:
            self._state["elapsed_s"] = self._elapsed()
        return json.dumps(self._state, ensure_ascii=False).encode("utf-8", "replace") + b"\n"

    def _elapsed(self) -> float:
        return round(self.loop.time() - self._started, 3)

    def _set(self, **changes: object) -> None:
        """Change the state and tell it: a phase at once, numbers within the interval."""
        changed = {key: value for key, value in changes.items() if self._state[key] != value}
        if changed:
            self._state.update(changed)
            self._reporter.changed(at_once="phase" in changed)

    # Start and load

    def _environment(self) -> dict[str, str]:
        return {
            **with_memory_lines(os.environ, self.command),
            "LLAMA_SERVER_ROUTER_PORT": "1",
        }

    def _on_started(self, child: "subprocess.Popen[bytes]") -> None:
        self._started = self.loop.time()
        self._state["pid"] = child.pid
        self._reporter.connect()
        self._sample()

    def _on_not_started(self, words: str) -> None:
        self._tail.append(words)
        self._set_exit(code=EXIT_NOT_STARTED, number=None, reason=words)
        self._reporter.connect()

    def _is_loading(self) -> bool:
        return self._state["phase"] in ("starting", "loading")

    def _sample(self) -> None:
        """While it loads: what has it read, does it answer."""
        if self.child is None or not self._is_loading():
            return
        self._set(rchar=bytes_read(self.child.pid))
        self._probe.ask("/health")
        self.loop.after("sample", SAMPLE_S, self._sample)

    def _on_stdout(self, chunk: bytes) -> None:
        passed = []
        for line in self._stdout.feed(chunk):
            if line.startswith(PROGRESS):
                self._on_progress(line)
            else:
                passed.append(line + b"\n")
        self._out.write(b"".join(passed))

    def _on_stderr(self, chunk: bytes) -> None:
        self._err.write(chunk)
        lines = self._stderr.feed(chunk)
        if self._memory is not None:
            for line in lines:
                self._memory.take(line)
        self._remember(lines)

    def _remember(self, lines: Sequence[bytes]) -> None:
        """Keep the last lines, and apart from them the last that may say why it ends."""
        said = [line for line in lines if line.strip()]
        complaints = [line for line in said if complains(line)]
        self._tail.extend(readable(line) for line in said[-TAIL_LINES:])
        self._complaints.extend(readable(line) for line in complaints[-TAIL_LINES:])

    def _on_progress(self, line: bytes) -> None:
        told = progress(line)
        if told is None or not self._is_loading():
            return
        payload = told.get("payload")
        told_more = payload if isinstance(payload, dict) else {}
        if told.get("state") == "ready":
            self._ready_said = True
            self._set(progress_lines=True, meta=_bounded(told_more))
            self._probe.stop()
            self._probe.ask("/health")
        elif told.get("state") == "loading":
            stages, stage = told_more.get("stages"), told_more.get("current")
            self._set(
                phase="loading",
                progress_lines=True,
                stages=[str(name) for name in stages[:8]] if isinstance(stages, list) else [],
                stage=stage if stage in STAGES else None,
                value=fraction(told_more.get("value")),
            )

    # Ready

    def _on_answer(self, path: str, status: int, body: bytes) -> None:
        if self.child is None or self.status is not None or not self._is_loading():
            return
        if path == "/health":
            self._on_health(status)
        elif status == 200 and names_alias(body, self.command):
            self._became_ready()

    def _on_health(self, status: int) -> None:
        if self.child is None or status not in (200, 503):
            self._healthy_at = None
            return
        ours = owns_port(self.child.pid, self._port)
        if ours is False:
            self._healthy_at = None
        elif status == 503:
            self._set(phase="loading")
        elif not self._ready_awaited():
            if ours:
                self._became_ready()
            else:
                self._probe.ask("/v1/models")

    def _ready_awaited(self) -> bool:
        """Whether an engine that speaks the protocol has yet to say itself that it is ready."""
        if self._ready_said or not self._state["progress_lines"]:
            return False
        self._healthy_at = self._healthy_at or self.loop.time()
        return self.loop.time() - self._healthy_at < READY_LINE_S

    def _became_ready(self) -> None:
        self.loop.cancel("sample")
        self._probe.stop()
        pid = self.child.pid if self.child is not None else 0
        self._set(phase="ready", ready_s=self._elapsed(), rchar=bytes_read(pid))
        self.loop.after("memory", MEMORY_LINES_S, self._tell_memory)

    def _tell_memory(self) -> None:
        """The load is over: what it took does not change any more, whatever is printed later."""
        if self._memory is None:
            return
        memory, self._memory = self._memory, None
        self._set(
            memory=memory.found(),
            engine={
                "build": memory.build,
                "devices": memory.devices(),
                "copies": memory.copies,
            },
        )

    # Stop and end

    def _on_stop(self) -> None:
        was_loading = self._is_loading()
        self.loop.cancel("sample")
        self._probe.stop()
        self._set(phase="stopping")
        if was_loading:
            self.loop.after("kill", KILL_WHILE_LOADING_S, self.kill)
            self.signal_child(signal.SIGTERM)
            self._say(b"")
        elif self._state["progress_lines"]:
            self._say(EXIT_COMMAND)
            self.loop.after("again", ASK_AGAIN_S, self._ask_again)
        else:
            self.signal_child(signal.SIGTERM)
            self._say(b"")
            ready_s = self._state["ready_s"]
            if isinstance(ready_s, float) and self._elapsed() - ready_s < ASK_AGAIN_S:
                # Here a second SIGTERM means "at once", so only where the first may be lost.
                self.loop.after("again", ASK_AGAIN_S, lambda: self.signal_child(signal.SIGTERM))

    def _ask_again(self) -> None:
        """After the line the first SIGTERM asks once more, the second one means "at once".

        An engine that is asked to end while it streams an answer can wait for its reader for ever.
        """
        self.signal_child(signal.SIGTERM)
        self.loop.after("at once", AT_ONCE_S, lambda: self.signal_child(signal.SIGTERM))

    def _say(self, last_words: bytes) -> None:
        """Write to the child's stdin and close it."""
        if self.child is not None and self.child.stdin is not None and not self.child.stdin.closed:
            with contextlib.suppress(OSError):
                os.write(self.child.stdin.fileno(), last_words)
            with contextlib.suppress(OSError):
                self.child.stdin.close()

    def _on_ended(self) -> None:
        self._say(b"")
        self._probe.stop()
        self.loop.cancel("sample")
        self._remember(self._stderr.rest())
        status = self.status or 0
        number = signal.Signals(-status) if status < 0 else None
        self._set_exit(code=None if number else status, number=number, reason=None)

    def _set_exit(
        self, *, code: int | None, number: signal.Signals | None, reason: str | None
    ) -> None:
        killed = number == signal.SIGKILL and oom_kills() > self._oom_kills
        said = [*self._complaints, *self._tail]
        memory = not self.stopping and code != 0 and (killed or out_of_memory(said))
        if reason is None and not self.stopping:
            was_ready = self._state["ready_s"] is not None
            reason = (
                why(list(self._complaints), was_ready=was_ready)
                or why(list(self._tail), was_ready=was_ready)
                or _plain(number, killed)
            )
        self._state["elapsed_s"] = self._elapsed()
        self._set(
            phase="exited",
            exit={
                "code": code,
                "signal": number.name if number else None,
                "asked": self.stopping,
                "orphaned": self.orphaned,
                "out_of_memory": memory,
                "reason": reason,
                "tail": list(self._tail)[-REPORTED_TAIL:],
            },
        )

    def _told(self) -> bool:
        """Whether we may end: Pannier knows, or is not there to be told."""
        if self.stopping and not self._reporter.connect():
            return super()._told()
        return super()._told() and self._reporter.told()


def _plain(number: signal.Signals | None, killed: bool) -> str | None:
    """The reason when the engine itself said none."""
    if number is None:
        return None
    return "killed by the kernel: out of memory" if killed else f"ended by {number.name}"


def _bounded(payload: dict[str, object]) -> dict[str, object] | None:
    """The engine's ready payload, or only its inner part, so that a report stays a small line."""
    for candidate in (payload, payload.get("meta")):
        if isinstance(candidate, dict) and len(json.dumps(candidate)) <= META_LIMIT:
            return candidate
    return None
