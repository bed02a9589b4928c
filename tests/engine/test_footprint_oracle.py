"""Footprints against llama.cpp's own planner, for every made model.

The planner reserves logits for a whole batch, where a server reserves one row for each slot; the
footprint is told so. All else is what a server does.
"""

import concurrent.futures
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.engine.comparison import EVERY_RUN, EXPERTS_IN_RAM, Row, rows
from tests.engine.oracle import Oracle, Refused, rpc_devices
from tests.gguf_models import MODELS, header_of, write

from pannier.gguf.footprint.estimate import footprint
from pannier.gguf.footprint.profile import profile_of
from pannier.gguf.footprint.values import LaunchSettings

pytestmark = pytest.mark.timeout(120)

NO_FLASH = {"grok-1"}
"""Models that llama.cpp runs without flash attention, and so without a quantized cache."""


@pytest.fixture(scope="module")
def oracle(llama_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Oracle]:
    log = tmp_path_factory.mktemp("devices") / "rpc.log"
    with rpc_devices(llama_server, 3, log) as endpoints:
        yield Oracle(llama_server, endpoints)


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_cache_are_those_of_llama_cpp_and_compute_nearly(
    oracle: Oracle, tmp_path: Path, name: str
) -> None:
    file, profile = write(tmp_path, name), profile_of(header_of(name))
    assert profile.exact, f"{name} is not known: {profile.notes}"
    chosen = EVERY_RUN | (EXPERTS_IN_RAM if profile.has_experts else {})

    def look(setting: str, settings: LaunchSettings) -> list[Row]:
        mine = footprint(profile, msgspec.structs.replace(settings, outputs=settings.batch))
        if name in NO_FLASH and settings.kv_v != "f16":
            with pytest.raises(Refused):
                oracle.ask(file, settings)
            assert any("refuse" in note for note in mine.notes), mine.notes
            return []
        return rows(name, setting, mine, *oracle.ask(file, settings))

    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        asked = [
            pool.submit(look, setting, choice(profile.units)) for setting, choice in chosen.items()
        ]
    found = [row for each in asked for row in each.result()]
    assert len(found) >= 10
    wrong = [str(row) for row in found if row.wrong]
    assert not wrong, "\n".join(["what llama.cpp says is the truth:", *wrong])
