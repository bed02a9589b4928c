#!/usr/bin/env python3
"""A llama-server for tests: a real process on a real port, the real one's manners, no model.

It takes any llama-server command line (unknown flags are ignored) and these of its own:

    --load-seconds S       how long the load takes (default 0.3)
    --stages A,B           what it loads: text_model, spec_model, mmproj_model (default text_model)
    --no-progress-lines    an engine that does not know the progress protocol
    --fail-after S         the load fails after S seconds, as a missing GGUF file does
    --exit-code N          the code of that failure, and of --die-after-ready (default 1)
    --fail-words TEXT      what the failure says, instead of the words for a missing file
    --die-after-ready S    it ends by itself S seconds after it became ready
    --ignore-term          SIGTERM does nothing, and neither do the exit line and the end of stdin
    --log-burst BYTES      that much on stderr while it loads
    --log-text TEXT        that on stderr while it loads
    --token-delay S        between the chunks of a streamed answer (default 0.01)
    --tokens N             chunks of an answer (default 5)
    --hang                 it becomes ready, and then no answer ever ends

As with the real one (b11434): 503 on every route until it is ready; with the environment variable
LLAMA_SERVER_ROUTER_PORT it prints progress lines on stdout, ends with code 1 at the end of its
stdin (only looked at once it is ready), ends with code 0 on the line `cmd_router_to_child:exit`,
and hangs on SIGTERM while stdin is open; without the variable SIGTERM ends it with code 0. While it
loads, SIGTERM kills it. A port that is taken ends it with code 1. `/v1/models` names its --alias.
"""

import argparse
import contextlib
import json
import os
import signal
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROGRESS = "cmd_child_to_router:state:"
EXIT_LINE = "cmd_router_to_child:exit"
LOADING = {"error": {"message": "Loading model", "type": "unavailable_error", "code": 503}}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--alias", "-a", default=None)
    parser.add_argument("--model", "-m", default="model.gguf")
    parser.add_argument("--load-seconds", type=float, default=0.3)
    parser.add_argument("--stages", default="text_model")
    parser.add_argument("--no-progress-lines", action="store_true")
    parser.add_argument("--fail-after", type=float, default=None)
    parser.add_argument("--exit-code", type=int, default=1)
    parser.add_argument("--fail-words", default=None)
    parser.add_argument("--die-after-ready", type=float, default=None)
    parser.add_argument("--ignore-term", action="store_true")
    parser.add_argument("--log-burst", type=int, default=0)
    parser.add_argument("--log-text", default="")
    parser.add_argument("--token-delay", type=float, default=0.01)
    parser.add_argument("--tokens", type=int, default=5)
    parser.add_argument("--hang", action="store_true")
    return parser.parse_known_args()[0]


class Engine:
    """What the routes and the main thread share."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.names = (given.alias or given.model).split(",")
        self.speaks = "LLAMA_SERVER_ROUTER_PORT" in os.environ and not given.no_progress_lines
        self.ready = threading.Event()
        self.stop = threading.Event()
        self.began = time.monotonic()

    def log(self, level: str, words: str) -> None:
        ms = int((time.monotonic() - self.began) * 1000)
        sys.stderr.write(f"0.{ms // 1000:02d}.{ms % 1000:03d}.000 {level} {words}\n")
        sys.stderr.flush()

    def tell(self, state: str, payload: dict[str, Any]) -> None:
        if self.speaks:
            sys.stdout.write(PROGRESS + json.dumps({"state": state, "payload": payload}) + "\n")
            sys.stdout.flush()

    def load(self) -> None:
        """Take the time that a load takes, and say how far it is."""
        given = self.given
        stages = given.stages.split(",")
        end = given.load_seconds if given.fail_after is None else given.fail_after
        start = time.monotonic()
        self.log("I", f"srv    load_model: loading model '{given.model}'")
        sys.stderr.write(given.log_text)
        if given.log_burst:
            line = b"0.00.000.000 I a line of the log, one of very many " + b"." * 76 + b"\n"
            for _ in range(given.log_burst // len(line)):
                sys.stderr.buffer.write(line)
            sys.stderr.flush()
        while (passed := time.monotonic() - start) < end:
            done = min(passed / max(given.load_seconds, 0.001), 1.0) * len(stages)
            at = min(int(done), len(stages) - 1)
            value = min(done - at, 1.0)
            self.tell("loading", {"stages": stages, "current": stages[at], "value": value})
            time.sleep(min(0.05, end - passed))
        if given.fail_after is not None:
            self.fail()
        self.tell("loading", {"stages": stages, "current": stages[-1], "value": 1.0})

    def fail(self) -> None:
        """End as a failed load does: the cause first, then what follows from it."""
        model = self.given.model
        missing = f"failed to open GGUF file '{model}' (No such file or directory)"
        self.log("E", self.given.fail_words or f"gguf_init_from_file: {missing}")
        self.log("E", f"llama_model_load: error loading model: failed to load model from {model}")
        self.log("E", "llama_model_load_from_file_impl: failed to load model")
        self.log("E", "srv  llama_server: exiting due to model loading error")
        os._exit(self.given.exit_code)

    def watch_stdin(self) -> None:
        """The monitor thread: the exit line stops the server, the end of stdin ends the process."""
        for line in sys.stdin:
            if EXIT_LINE in line and not self.given.ignore_term:
                self.stop.set()
                return
        if not self.given.ignore_term:
            os._exit(1)

    def serve(self) -> int:
        """Be ready until asked to end."""
        given = self.given
        if given.ignore_term:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        else:
            signal.signal(signal.SIGTERM, lambda *_: self.stop.set())
        self.ready.set()
        self.log("I", "srv  llama_server: model loaded")
        monitor = threading.Thread(target=self.watch_stdin, daemon=True)
        if self.speaks:
            monitor.start()
        meta = {"n_ctx": 1024, "n_params": 1312000, "size": 818432, "ftype": "Q4_K - Medium"}
        self.tell("ready", {"id": self.names[0], "aliases": self.names, "meta": meta})
        if given.die_after_ready is not None and not self.stop.wait(given.die_after_ready):
            self.log("E", "GGML_ASSERT(fake) failed")
            return int(given.exit_code)
        self.stop.wait()
        if self.speaks:
            monitor.join()  # The real one waits here too: SIGTERM alone never ends it.
        return 0


class Routes(BaseHTTPRequestHandler):
    """The routes of llama-server that the tests use."""

    engine: Engine
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Nothing: the real one is silent by default."""

    def answer(self, status: int, body: object) -> None:
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def do_GET(self) -> None:
        engine = self.engine
        if not engine.ready.is_set():
            self.answer(503, LOADING)
        elif self.path in ("/health", "/v1/health"):
            self.answer(200, {"status": "ok"})
        elif self.path in ("/v1/models", "/models"):
            rows = [{"id": engine.names[0], "aliases": engine.names, "object": "model"}]
            self.answer(200, {"object": "list", "data": rows})
        else:
            self.answer(404, {"error": {"message": "File Not Found", "code": 404}})

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length)
        if not self.engine.ready.is_set():
            self.answer(503, LOADING)
            return
        try:
            asked = json.loads(raw)
        except ValueError:
            self.answer(400, {"error": {"message": "parse error", "code": 400}})
            return
        if self.engine.given.hang:
            self.engine.stop.wait()
        if self.path == "/v1/chat/completions":
            self.chat(asked)
        elif self.path == "/v1/embeddings":
            given = asked.get("input", "")
            texts = given if isinstance(given, list) else [given]
            rows = [
                {"object": "embedding", "index": at, "embedding": [0.1, 0.2, float(len(str(text)))]}
                for at, text in enumerate(texts)
            ]
            self.answer(200, {"object": "list", "model": self.engine.names[0], "data": rows})
        else:
            self.answer(404, {"error": {"message": "File Not Found", "code": 404}})

    def chat(self, asked: dict[str, Any]) -> None:
        given = self.engine.given
        words = [f"token{at} " for at in range(given.tokens)]
        head = {"id": "chatcmpl-fake", "created": 1, "model": self.engine.names[0]}
        if not asked.get("stream"):
            time.sleep(given.token_delay * given.tokens)
            message = {"role": "assistant", "content": "".join(words).strip()}
            choice = {"index": 0, "message": message, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": len(words), "total_tokens": 6}
            body = {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            self.answer(200, body)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        deltas: list[tuple[dict[str, str], str | None]] = [({"role": "assistant"}, None)]
        deltas += [({"content": word}, None) for word in words] + [({}, "stop")]
        for delta, finish in deltas:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            event = {**head, "object": "chat.completion.chunk", "choices": [choice]}
            self.chunk(b"data: " + json.dumps(event).encode() + b"\n\n")
            time.sleep(given.token_delay)
        self.chunk(b"data: [DONE]\n\n")
        self.chunk(b"")

    def chunk(self, piece: bytes) -> None:
        self.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


def main() -> int:
    given = options()
    engine = Engine(given)
    engine.log("I", "srv  llama_server: initializing ...")
    routes = type("BoundRoutes", (Routes,), {"engine": engine})
    try:
        server = Server((given.host, given.port), routes)
    except OSError:
        engine.log("E", f"srv         start: couldn't bind HTTP server socket, port: {given.port}")
        engine.log("E", "srv  llama_server: exiting due to HTTP server error")
        return 1
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    engine.load()
    code = engine.serve()
    with contextlib.suppress(OSError):
        server.socket.close()
    sys.stdout.flush()
    return code


if __name__ == "__main__":
    os._exit(
        main()
    )  # Request threads may still stream; the real one does not wait for them either.
