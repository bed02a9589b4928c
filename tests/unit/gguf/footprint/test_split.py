"""How units are divided: as llama.cpp does it, in single precision."""

import pytest

from pannier.gguf.footprint.split import counts, on_devices


@pytest.mark.parametrize(
    ("units", "shares", "found"),
    [
        (33, (1, 1), (17, 16)),  # Llama 8B, seen: 17 layers, then 15 and the output
        (33, (3, 1), (25, 8)),
        (33, (1, 1, 1), (11, 11, 11)),
        (33, (30, 3), (30, 3)),
        (33, (0, 1), (0, 33)),
        (33, (1, 0), (33, 0)),
        (81, (2, 3, 5), (17, 24, 40)),
        (1, (1, 1), (1, 0)),
        (0, (1, 1), (0, 0)),
        (33, (5,), (33,)),
    ],
)
def test_shares_become_units(units, shares, found):
    assert counts(units, shares) == found


def test_no_devices_have_no_units():
    assert counts(33, ()) == ()


def test_shares_that_say_nothing_count_as_equal():
    assert counts(10, (0, 0)) == counts(10, (-1, 3)) == (5, 5)


def test_shares_beyond_all_measure_count_as_equal():
    assert counts(33, (10**60, 1)) == (17, 16)


@pytest.mark.parametrize(
    ("gpu_layers", "devices", "units"),
    [(None, 1, 33), (-1, 1, 33), (99, 1, 33), (10, 2, 10), (0, 1, 0), (None, 0, 0), (10, 0, 0)],
)
def test_units_on_devices_are_counted_from_the_end(gpu_layers, devices, units):
    assert on_devices(33, gpu_layers, devices) == units
