"""Each way in which readers of GGUF were broken: ours says what is wrong, or reads it."""

import io
import tracemalloc

import pytest
from tests.fuzz.seeds import CORPUS, SEEDS

from pannier.errors import GgufError
from pannier.gguf.header import read_header

FILES = sorted(path.name for path in CORPUS.iterdir())
SMALL = 1 << 20


def test_the_corpus_is_what_its_script_writes():
    assert sorted(SEEDS) == FILES
    different = [name for name in FILES if (CORPUS / name).read_bytes() != SEEDS[name][0]]
    assert different == [], "run python -m tests.fuzz.seeds"


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_the_corpus_is_read_or_refused_with_its_reason(name):
    raw, expected = (CORPUS / name).read_bytes(), SEEDS[name][1]
    assert len(raw) < 1024
    if expected is None:
        assert read_header(io.BytesIO(raw), len(raw)).file_size == len(raw)
        return
    with pytest.raises(GgufError) as caught:
        read_header(io.BytesIO(raw), len(raw))
    assert expected in caught.value.reason
    assert 0 <= caught.value.offset <= len(raw)


@pytest.mark.parametrize("name", FILES)
def test_a_small_file_takes_little_memory_whatever_it_claims(name):
    raw = (CORPUS / name).read_bytes()
    tracemalloc.start()
    try:
        read_header(io.BytesIO(raw), len(raw))
    except GgufError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < SMALL
