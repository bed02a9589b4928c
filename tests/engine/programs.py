"""The real programs that tests/engine runs: found, or installed once before the first test.

llama-swap is the one that lies beside the checkout where there is one, so that the half of the
tests that needs it cannot be skipped there without anybody noticing.
"""

import asyncio
from pathlib import Path

from pannier.demo.files import fetch_model
from pannier.engine.install import install
from pannier.engine.locate import find_llama_server, find_llama_swap
from pannier.engine.report import Printer

ROOT = Path(__file__).resolve().parents[2]
LENT_SWAP = ROOT.parent / "shared" / "bin" / "llama-swap"


class Programs:
    """Where the real programs are; `swap` is None where there is no llama-swap."""

    def __init__(self, server: str, swap: str | None, model: Path) -> None:
        self.server = server
        self.swap = swap
        self.model = model

    @property
    def environ(self) -> dict[str, str]:
        found = {"PANNIER_LLAMA_SERVER": self.server}
        return {**found, "PANNIER_LLAMA_SWAP": self.swap} if self.swap else found


def get_programs(printer: Printer) -> Programs:
    """Raises PannierError where llama-server or the model cannot be had."""
    found = find_llama_server()
    swap = str(LENT_SWAP) if LENT_SWAP.exists() else None
    if found is None:
        printer.say("\nthe tests need llama-server; it is installed now, once")
        want = ("llama-server",) if swap else ("llama-server", "llama-swap")
        made = asyncio.run(install(want=want, say=printer.say, show=printer.show))
        found = made.llama_server
    assert found is not None
    if swap is None and (other := find_llama_swap()) is not None:
        swap = other.path
    model = asyncio.run(fetch_model(printer.say))
    return Programs(found.path, swap, model)
