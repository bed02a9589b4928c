"""A real Open WebUI in a process of its own, and what an admin asks of it over its REST API."""

import json
import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.engine.serving import free_port

Json = dict[str, Any]

START_S = 180.0
FUNCTION = "pannier_progress"
KEY = "a key for the tests of the plugin"
HEADER = "X-OpenWebUI-Message-Id"


def wait_for(holds: Callable[[], Any], within: float = 40.0, what: str = "") -> Any:
    """The first value of `holds` that is true."""
    end = time.monotonic() + within
    while not (found := holds()):
        assert time.monotonic() < end, f"did not come in {within:.0f} s: {what or holds}"
        time.sleep(0.2)
    return found


class OpenWebUi:
    """One server with a fresh database, without accounts, that asks nobody but loopback."""

    def __init__(self, environment: Path, folder: Path) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log_file = folder / "open-webui.log"
        env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "DATA_DIR": str(folder / "data"),
            "WEBUI_SECRET_KEY": "for tests",
            "WEBUI_AUTH": "False",
            "GLOBAL_LOG_LEVEL": "WARNING",
            "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OFFLINE_MODE": "True",
            "RAG_EMBEDDING_ENGINE": "openai",
            "ENABLE_OLLAMA_API": "False", "ENABLE_OPENAI_API": "True",
            "OPENAI_API_BASE_URLS": "http://127.0.0.1:9/v1", "OPENAI_API_KEYS": "",
            "ENABLE_VERSION_UPDATE_CHECK": "False", "ANONYMIZED_TELEMETRY": "False",
            "DO_NOT_TRACK": "True", "SCARF_NO_ANALYTICS": "True",
            # Only the title task is of interest, and a small model is slow at long prompts.
            "ENABLE_FOLLOW_UP_GENERATION": "False", "ENABLE_TAGS_GENERATION": "False",
            "TITLE_GENERATION_PROMPT_TEMPLATE": "A title for: {{MESSAGES:END:1}}",
        }  # fmt: skip
        (folder / "data").mkdir()
        with self.log_file.open("ab") as log:
            self.process = subprocess.Popen(
                [str(environment / "bin" / "python"), str(environment / "bin" / "open-webui"),
                 "serve", "--host", "127.0.0.1", "--port", str(self.port)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env, cwd=folder,
                start_new_session=True,
            )  # fmt: skip
        self._token = ""
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def up(self) -> None:
        """Waits until it answers, and signs in."""

        def healthy() -> bool:
            assert self.process.poll() is None, f"Open WebUI ended:\n{self.log()}"
            try:
                return bool(self.get("/health"))
            except OSError:
                return False

        wait_for(healthy, START_S, "Open WebUI")
        admin = {"email": "admin@localhost", "password": "admin"}
        self._token = self.post("/api/v1/auths/signin", admin)["token"]
        # Without it the page opens with what is new in this version.
        version = self.get("/api/version")["version"]
        self.post("/api/v1/users/user/settings/update", {"ui": {"version": version}})

    def close(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def get(self, path: str) -> Any:
        return self._call(path, None)

    def post(self, path: str, body: Any = None) -> Any:
        return self._call(path, json.dumps(body or {}).encode())

    def _call(self, path: str, body: bytes | None) -> Any:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._token}"}
        request = urllib.request.Request(self.url + path, body, headers)
        try:
            with self._opener.open(request, timeout=60) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{path}: {error.code} {error.read()!r}") from None

    def connect(self, pannier: str, **config: Any) -> None:
        """Makes Pannier the only connection, as the README of the plugin says."""
        headers = {HEADER: "{{MESSAGE_ID}}"}
        settings = {"enable": True, "provider": "llama.cpp", "headers": headers, **config}
        self.post(
            "/openai/config/update",
            {
                "ENABLE_OPENAI_API": True,
                "OPENAI_API_BASE_URLS": [f"{pannier}/v1"],
                "OPENAI_API_KEYS": [KEY],
                "OPENAI_API_CONFIGS": {"0": settings},
            },
        )
        assert self.models(), f"no models from {pannier}"

    def models(self) -> list[Json]:
        found: list[Json] = self.get("/api/models?refresh=true")["data"]
        return found

    def make_workspace_model(self, name: str, base: str) -> None:
        """A model of Open WebUI's own, above one of a connection."""
        if name not in [each["id"] for each in self.models()]:
            form = {"id": name, "name": name.title(), "base_model_id": base}
            self.post("/api/v1/models/create", {**form, "meta": {}, "params": {}})
            self.models()

    def install(self, readme: Path) -> None:
        """Installs the plugin with the code that the README has for it."""
        (code,) = re.findall(r"^```python\n(.*?)^```", readme.read_text(), re.DOTALL | re.MULTILINE)
        env = {**os.environ, "WEBUI_URL": self.url, "WEBUI_TOKEN": self._token, "NO_PROXY": "*"}
        argv = [sys.executable, "-c", code]
        subprocess.run(argv, check=True, cwd=readme.parents[1], env=env, timeout=60)
        state = self.get(f"/api/v1/functions/id/{FUNCTION}")
        assert (state["type"], state["is_active"], state["is_global"]) == ("filter", True, True)

    def switch(self, *, on: bool) -> None:
        """Switches the function on or off."""
        if self.get(f"/api/v1/functions/id/{FUNCTION}")["is_active"] != on:
            self.post(f"/api/v1/functions/id/{FUNCTION}/toggle")

    def valves(self, **values: Any) -> None:
        """Sets these valves; all others become what they are by themselves."""
        self.post(f"/api/v1/functions/id/{FUNCTION}/valves/update", values)

    def saved(self, chat: str) -> list[Json]:
        """The answers of a chat as they are saved."""
        found = self.get(f"/api/v1/chats/{chat}")["chat"]["history"]["messages"].values()
        return [each for each in found if each["role"] == "assistant"]

    def log(self) -> str:
        return self.log_file.read_text(errors="replace")[-12_000:]
