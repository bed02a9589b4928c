"""How far a load is, source by source; what holds for any reports is in tests/property."""

import pytest

from pannier.gguf.model_files import ModelFiles
from pannier.progress.parse import Report
from pannier.progress.tracker import (
    READ_SHARE,
    SILENT_S,
    STALLED_S,
    advance,
    begin,
    end,
    show,
)

TEXT = ModelFiles(path="/m/a.gguf", weights=1000)
ALL = ModelFiles(path="/m/a.gguf", weights=800, projector_bytes=150, draft_bytes=50)
STAGES = ("text_model", "spec_model", "mmproj_model")


def report(phase="loading", **fields):
    fixed = {"v": 1, "instance": "a", "launcher": 1, "pid": 2, "port": 9000}
    return Report(**fixed, phase=phase, **fields)


def engine(stage, value, stages=STAGES):
    return report(stage=stage, value=value, stages=stages, progress_lines=True)


def after(*reports, files=TEXT, usual=None, began=100.0, every=1.0):
    progress = begin(files, began, usual)
    for number, each in enumerate(reports, start=1):
        progress = advance(progress, each, files, began + number * every)
    return progress


def test_before_any_report_nothing_is_claimed():
    shown = show(begin(TEXT, 100.0), 101.5)
    assert (shown.stage, shown.fraction, shown.source, shown.eta_s) == (
        "starting",
        None,
        None,
        None,
    )
    assert (shown.elapsed_s, shown.bytes_done, shown.bytes_total) == (1.5, None, 1000)


@pytest.mark.parametrize(
    ("stage", "value", "shown_as", "read"),
    [
        ("text_model", 0.5, "weights", 400),
        ("text_model", 1.0, "weights", 800),
        ("spec_model", 0.5, "draft", 825),
        ("mmproj_model", 0.2, "projector", 880),
        ("mmproj_model", 1.0, "warming_up", 1000),
    ],
)
def test_each_stage_counts_by_the_size_of_its_file(stage, value, shown_as, read):
    shown = show(after(engine(stage, value), files=ALL), 102.0)
    assert (shown.stage, shown.bytes_done, shown.source) == (shown_as, read, "engine")
    assert shown.fraction == pytest.approx(read / 1000 * READ_SHARE, abs=1e-4)


def test_an_engine_that_names_no_stages_has_the_one_that_it_reports():
    assert show(after(engine("text_model", 0.5, ())), 102.0).bytes_done == 500


def test_a_stage_that_is_not_among_the_announced_ones_does_no_harm():
    shown = show(after(engine("mmproj_model", 0.5, ("text_model",)), files=ALL), 102.0)
    assert shown.fraction is not None
    assert 0 <= shown.fraction < 1


def test_the_bar_is_not_full_before_the_engine_answers():
    shown = show(after(engine("text_model", 1.0, ("text_model",))), 102.0)
    assert (shown.stage, shown.fraction) == ("warming_up", READ_SHARE)


def test_an_engine_without_progress_lines_is_measured_by_what_it_has_read():
    shown = show(after(report(rchar=500)), 102.0)
    assert (shown.source, shown.stage, shown.bytes_done) == ("io", "weights", 500)
    assert show(after(report(rchar=5000)), 102.0).stage == "warming_up"


def test_what_an_engine_with_progress_lines_has_read_is_not_asked():
    assert show(after(report(rchar=500, progress_lines=True)), 102.0).source is None


def test_files_of_no_size_cannot_be_measured_by_reading():
    assert show(after(report(rchar=500), files=ModelFiles(path="x")), 102.0).fraction is None


def test_where_nothing_speaks_earlier_loads_do():
    progress = after(report(), usual=20.0)
    assert show(progress, 101.0 + SILENT_S / 2).source is None
    shown = show(progress, 110.0)
    assert (shown.source, shown.fraction, shown.eta_s) == ("history", 0.5, 10.0)
    assert shown.bytes_done is None


def test_r_2_a_load_that_takes_longer_than_usual_waits_below_full():
    shown = show(after(report(), usual=20.0), 1000.0)
    assert (shown.fraction, shown.eta_s) == (READ_SHARE, 0.0)


def test_r_2_the_engine_s_word_does_not_take_back_what_earlier_loads_said():
    progress = after(report(), usual=20.0)
    assert show(progress, 110.0).fraction == 0.5
    progress = advance(progress, engine("text_model", 0.1), TEXT, 110.0)
    shown = show(progress, 110.0)
    assert (shown.source, shown.fraction) == ("engine", 0.5)


def test_the_rest_is_reckoned_from_the_rate_so_far():
    shown = show(after(engine("text_model", 0.5, ("text_model",)), every=10.0), 110.0)
    assert shown.fraction == 0.475
    assert shown.eta_s == pytest.approx(10 * (1 - 0.475) / 0.475, abs=0.1)


@pytest.mark.parametrize(("value", "every"), [(0.01, 10.0), (0.5, 0.2)])
def test_no_rest_is_guessed_from_too_little(value, every):
    progress = after(engine("text_model", value, ("text_model",)), every=every)
    assert show(progress, 100.0 + every).eta_s is None


def test_a_load_that_does_not_advance_is_stalled():
    progress = after(engine("text_model", 0.5), engine("text_model", 0.5))
    assert not show(progress, 101.0 + STALLED_S).stalled
    assert show(progress, 101.1 + STALLED_S).stalled


def test_a_load_that_advances_is_not_stalled_any_more():
    progress = after(engine("text_model", 0.5), engine("text_model", 0.6), every=60.0)
    assert not show(progress, 220.0).stalled


def test_what_comes_after_the_weights_has_no_number_and_is_not_called_stalled():
    progress = after(engine("text_model", 1.0, ("text_model",)))
    assert not show(progress, 102.0 + 10 * STALLED_S).stalled


def test_r_2_elapsed_stops_when_it_is_ready():
    progress = after(engine("text_model", 0.5), report("ready"))
    shown = show(progress, 500.0)
    assert (shown.elapsed_s, shown.fraction, shown.bytes_done) == (2.0, 1.0, 1000)


def test_r_2_elapsed_stops_when_it_failed():
    progress = end(after(engine("text_model", 0.5)), 103.0)
    assert show(progress, 500.0).elapsed_s == 3.0


@pytest.mark.parametrize("usual", [None, 20.0])
def test_ap_31_32_after_its_end_a_load_has_no_stage_no_rest_and_is_not_stalled(usual):
    for progress in (
        after(report("ready"), usual=usual),
        end(after(engine("text_model", 0.5), usual=usual), 103.0),
        end(after(report(), usual=usual), 150.0),
    ):
        shown = show(progress, 500.0)
        assert (shown.stage, shown.eta_s, shown.stalled) == (None, None, False)
        assert shown.source != "history"


@pytest.mark.parametrize("phase", ["starting", "stopping", "exited"])
def test_a_report_of_another_phase_moves_nothing(phase):
    progress = after(engine("text_model", 0.5))
    other = report(phase, stage="text_model", value=0.9)
    assert advance(progress, other, TEXT, 105.0) == progress
