"""Whatever a launcher reports, and in whatever order: a bar never goes back and never lies full."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pannier.gguf.model_files import ModelFiles
from pannier.progress.parse import Report
from pannier.progress.tracker import advance, begin, end, show

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

STAGES = ["text_model", "spec_model", "mmproj_model"]
SIZES = st.sampled_from([0, 1, 1000, 10**9])
FILES = st.builds(
    ModelFiles,
    path=st.just("/m/a.gguf"),
    weights=SIZES,
    projector_bytes=SIZES,
    draft_bytes=SIZES,
)
REPORTS = st.builds(
    Report,
    v=st.just(1),
    instance=st.just("a"),
    launcher=st.just(1),
    pid=st.just(2),
    port=st.just(9000),
    phase=st.sampled_from(["starting", "loading", "loading", "loading", "stopping", "exited"]),
    stages=st.lists(st.sampled_from([*STAGES, "new_model"]), max_size=4).map(tuple),
    stage=st.none() | st.sampled_from(STAGES),
    value=st.none() | st.floats(0, 1),
    rchar=st.none() | st.integers(0, 4 * 10**9),
    progress_lines=st.booleans(),
)
STEPS = st.lists(st.tuples(st.floats(0, 100), REPORTS), max_size=12)
USUAL = st.none() | st.floats(0.1, 500)


def seen(files: ModelFiles, steps: list[tuple[float, Report]], usual: float | None) -> list[Any]:
    """What is shown before and after every report, and between them."""
    now, progress = 100.0, begin(files, 100.0, usual)
    shown = [show(progress, now)]
    for wait, report in steps:
        now += wait / 2
        shown.append(show(progress, now))
        now += wait / 2
        progress = advance(progress, report, files, now)
        shown.append(show(progress, now))
    return shown


@calm
@given(FILES, STEPS, USUAL)
def test_r_2_a_fraction_never_falls_and_is_below_one_until_the_engine_answers(files, steps, usual):
    last = 0.0
    for shown in seen(files, steps, usual):
        if shown.fraction is not None:
            assert last <= shown.fraction < 1.0
            last = shown.fraction


@calm
@given(FILES, STEPS, USUAL)
def test_a_fraction_that_was_shown_is_not_taken_back(files, steps, usual):
    known = [shown.fraction is not None for shown in seen(files, steps, usual)]
    assert known == sorted(known)


@calm
@given(FILES, STEPS, USUAL)
def test_what_is_shown_is_possible(files, steps, usual):
    for shown in seen(files, steps, usual):
        assert shown.elapsed_s >= 0
        assert shown.eta_s is None or shown.eta_s >= 0
        assert (shown.source is None) == (shown.fraction is None)
        if shown.bytes_done is not None:
            assert shown.bytes_total is not None
            assert 0 <= shown.bytes_done <= shown.bytes_total


@calm
@given(FILES, STEPS, USUAL, st.floats(0, 1e6))
def test_r_2_nothing_moves_after_the_end(files, steps, usual, later):
    now, progress = 100.0, begin(files, 100.0, usual)
    for wait, report in steps:
        now += wait
        progress = advance(progress, report, files, now)
    ended = end(progress, now)
    for _, report in steps:
        assert advance(ended, report, files, now + later) == ended
    assert show(ended, now) == show(ended, now + later)
    assert end(ended, now + later) == ended


@calm
@given(FILES, REPORTS, USUAL)
def test_the_same_report_twice_is_one_report(files, report, usual):
    once = advance(begin(files, 0.0, usual), report, files, 1.0)
    assert advance(once, report, files, 1.0) == once
