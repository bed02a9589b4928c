import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pannier.progress.parse import Exit, Report, decode_report

LINE: dict[str, object] = {
    "v": 1,
    "instance": "qwen3-8b#1",
    "launcher": 41,
    "pid": 42,
    "port": 8601,
    "phase": "loading",
    "stages": ["text_model", "mmproj_model"],
    "stage": "text_model",
    "value": 0.33,
    "rchar": 1234,
    "progress_lines": True,
    "meta": None,
    "elapsed_s": 1.5,
    "ready_s": None,
    "exit": None,
}
EXIT = {
    "code": None,
    "signal": "SIGKILL",
    "asked": False,
    "out_of_memory": True,
    "reason": "cudaMalloc failed: out of memory",
    "tail": ["a", "b"],
}


def line(**changes: object) -> bytes:
    return json.dumps({**LINE, **changes}).encode() + b"\n"


def test_a_line_becomes_the_report_it_says() -> None:
    assert decode_report(line()) == Report(
        v=1,
        instance="qwen3-8b#1",
        launcher=41,
        pid=42,
        port=8601,
        phase="loading",
        stages=("text_model", "mmproj_model"),
        stage="text_model",
        value=0.33,
        rchar=1234,
        progress_lines=True,
        elapsed_s=1.5,
    )


def test_an_exit_keeps_signal_reason_and_last_words() -> None:
    report = decode_report(line(phase="exited", exit=EXIT, pid=None))
    assert report.exit == Exit(
        signal="SIGKILL",
        out_of_memory=True,
        reason="cudaMalloc failed: out of memory",
        tail=("a", "b"),
    )


def test_what_the_engine_says_of_itself_arrives_unchanged() -> None:
    meta = {"n_ctx": 2048, "size": 96576768, "ftype": "Q4_1", "nested": {"a": [1, None]}}
    assert decode_report(line(phase="ready", meta=meta, ready_s=2.5)).meta == meta


def test_unknown_fields_of_a_newer_launcher_are_accepted() -> None:
    assert decode_report(line(surprise={"deep": [1]})).instance == "qwen3-8b#1"


@pytest.mark.parametrize(
    "bad",
    [
        b"",
        b"\n",
        b"{}",
        b"[]",
        b"null",
        b"not json",
        b"\xff\xfe",
        line()[:-20],
        line(v=2),
        line(v="1"),
        line(instance=""),
        line(instance=7),
        line(phase="asleep"),
        line(stage="weights"),
        line(port=70000),
        line(value=1.5),
        line(value=-0.1),
        line(pid="42"),
        line(rchar="many"),
        line(exit={"code": "one"}),
        b"[" * 100_000,
        b'{"meta":' + b'{"a":' * 100_000,
        line()[:-2] + b', "x": ' + b"[" * 100_000,
    ],
    ids=lambda raw: repr(raw[:24]),
)
def test_everything_else_is_refused_with_a_value_error(bad: bytes) -> None:
    with pytest.raises(ValueError, match="not a report"):
        decode_report(bad)


@given(st.binary(max_size=300))
def test_no_bytes_raise_anything_but_a_value_error(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not a report"):
        decode_report(raw)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=8,
)


@given(st.sampled_from(sorted(LINE)), json_values)
def test_a_wrong_field_is_refused_or_is_a_report(field: str, value: object) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(decode_report(line(**{field: value})), Report)
