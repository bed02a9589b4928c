import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pannier.fleet.launcher_output import Lines
from pannier.fleet.launcher_words import (
    LINE_LENGTH,
    PROGRESS,
    fraction,
    out_of_memory,
    progress,
    readable,
    why,
)

MISSING = """\
0.00.001.471 I srv  llama_server: initializing ...
0.00.004.469 W srv  llama_server: security: no API key is set and CORS allows all origins
0.00.006.326 I srv    load_model: loading model '/m/none.gguf'
0.00.006.774 E gguf_init_from_file: failed to open GGUF file '/m/none.gguf' (No such file or directory)
0.00.007.574 E llama_model_load: error loading model: llama_model_loader: failed to load model
0.00.007.628 E llama_model_load_from_file_impl: failed to load model
0.00.007.965 E common_fit_params: encountered an error while trying to fit params to free memory
0.00.008.007 E cmn  common_init_: failed to load model '/m/none.gguf'
0.00.008.012 E srv    load_model: failed to load model, '/m/none.gguf'
0.00.008.015 I srv    operator(): operator(): cleaning up before exit...
0.00.009.031 E srv  llama_server: exiting due to model loading error
"""  # noqa: E501
NOT_GGUF = """\
0.00.006.258 E gguf_init_from_reader: invalid magic characters: 'root', expected 'GGUF'
0.00.006.401 E llama_model_load: error loading model: llama_model_loader: failed to load model
0.00.007.279 E srv  llama_server: exiting due to model loading error
"""
PORT = """\
0.00.010.000 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 80
0.00.010.001 I srv    operator(): operator(): cleaning up before exit...
0.00.010.002 E srv  llama_server: exiting due to HTTP server error
"""
CUDA = """\
0.01.006.258 E load_tensors: error loading something that is only a consequence
0.01.006.401 E ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0: cudaMalloc failed: out of memory
0.01.007.279 E srv  llama_server: exiting due to model loading error
"""  # noqa: E501


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            MISSING,
            (
                "gguf_init_from_file: failed to open GGUF file '/m/none.gguf'"
                " (No such file or directory)"
            ),
        ),
        (NOT_GGUF, "gguf_init_from_reader: invalid magic characters: 'root', expected 'GGUF'"),
        (
            PORT,
            "srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 80",
        ),
        (
            CUDA,
            (
                "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 9000.00 MiB on device 0:"
                " cudaMalloc failed: out of memory"
            ),
        ),
        ("error: invalid argument: --bogus-flag\n", "error: invalid argument: --bogus-flag"),
        (
            'error while handling argument "-c": stoi\n\nusage:\n-c,    --ctx-size N\n',
            'error while handling argument "-c": stoi',
        ),
        ("0.00.001.471 I srv  llama_server: initializing ...\n", None),
        ("", None),
    ],
    ids=["missing", "not gguf", "port", "cuda", "flag", "value", "nothing", "silent"],
)
def test_the_reason_is_the_line_that_says_why(log: str, reason: str | None) -> None:
    assert why(log.splitlines(), was_ready=False) == reason


def test_after_it_served_the_last_complaint_counts_since_the_earlier_ones_were_survived() -> None:
    log = ["0.01.0.0 E srv: invalid request", "a.cpp:12: GGML_ASSERT(x) failed"]
    assert why(log, was_ready=True) == "a.cpp:12: GGML_ASSERT(x) failed"


@pytest.mark.parametrize(
    "words",
    [
        "cudaMalloc failed: out of memory",
        "ggml_vulkan: Device memory allocation failed: ErrorOutOfDeviceMemory",
        "failed to allocate buffer for kv cache",
        "unable to allocate CUDA0 buffer",
        "terminate called after throwing an instance of 'std::bad_alloc'",
    ],
)
def test_a_failed_allocation_is_recognised(words: str) -> None:
    assert out_of_memory(["fine", words])
    assert not out_of_memory(MISSING.splitlines())


def test_a_progress_line_is_read_and_a_broken_one_is_not() -> None:
    state = {"state": "loading", "payload": {"value": 0.5}}
    assert progress(PROGRESS + json.dumps(state).encode()) == state
    for broken in (b"", b"{", b"[]", b"7", b"\xff", b"[" * 100_000):
        assert progress(PROGRESS + broken) is None
    assert progress(PROGRESS + b'{"payload": {"value": NaN}}') == {"payload": {"value": None}}


@pytest.mark.parametrize(
    ("value", "read"),
    [(0.5, 0.5), (1, 1.0), (7, 1.0), (-1, 0.0), ("1", None), (None, None), (True, None)],
)
def test_a_fraction_is_a_number_between_nothing_and_all(value: object, read: object) -> None:
    assert fraction(value) == read


def test_a_line_for_people_has_no_colour_no_control_character_and_an_end() -> None:
    assert readable(b"\x1b[31mred\x1b[0m\ttab\x07bell\r") == "red tab\\x07bell"
    assert len(readable(b"x" * 10_000)) == LINE_LENGTH
    assert readable(b"\xff") == "\ufffd"


@given(st.binary(max_size=2000))
def test_no_bytes_make_an_unreadable_line(raw: bytes) -> None:
    line = readable(raw.replace(b"\n", b""))
    assert len(line) <= LINE_LENGTH
    assert line.splitlines() in ([], [line])


@given(st.lists(st.binary(max_size=40), max_size=20))
def test_lines_do_not_depend_on_how_the_stream_was_cut(chunks: list[bytes]) -> None:
    whole = b"".join(chunks)
    lines = Lines(10_000)
    cut = [line for chunk in chunks for line in lines.feed(chunk)] + lines.rest()
    assert b"\n".join(cut) == whole.removesuffix(b"\n")


def test_an_endless_line_is_kept_up_to_its_limit() -> None:
    lines = Lines(8)
    for _ in range(1000):
        assert lines.feed(b"abcdefghij") == []
    assert lines.feed(b"\nnext\n") == [b"abcdefgh", b"next"]
