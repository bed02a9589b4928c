import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.launching import FAKE_ENGINE, Launching


@pytest.fixture
async def launching(tmp_path: Path) -> AsyncIterator[Launching]:
    launching = Launching(tmp_path, [sys.executable, FAKE_ENGINE])
    await launching.server.start()
    yield launching
    assert await launching.close() == [], "a process outlived its launcher"
