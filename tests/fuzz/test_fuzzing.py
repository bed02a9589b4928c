"""A short run of each fuzzer, so that it stays one that can be run."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 30


@pytest.mark.skipif(
    importlib.util.find_spec("atheris") is None,
    reason="atheris is not installed: its wheels are for Python 3.11 on Linux alone",
)
@pytest.mark.timeout(240)
def test_thirty_seconds_of_fuzzing_find_nothing_in_the_reader_of_headers(tmp_path):
    found = tmp_path / "found"
    found.mkdir()
    ended = subprocess.run(
        [
            sys.executable,
            *("-m", "tests.fuzz.fuzz_header"),
            f"-max_total_time={SECONDS}",
            "-max_len=4096",
            f"-artifact_prefix={tmp_path}/",
            str(found),
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=180,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]
    done = re.search(r"Done (\d+) runs", ended.stderr)
    assert done, ended.stderr[-4000:]
    assert int(done[1]) > 1000
    assert any(found.iterdir()), "no new input in all the time: is the reader instrumented?"
