"""Sizes and durations: what is read, what is refused, what is written."""

import re

import msgspec
import pytest

from pannier.config.units import Duration, Size, encode_unit


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("0B", 0),
        ("1B", 1),
        ("512MiB", 512 * 2**20),
        ("512mib", 512 * 2**20),
        ("1.5GiB", 3 * 2**29),
        ("2 GB", 2_000_000_000),
        ("2KB", 2000),
        ("2kib", 2048),
        ("1MB", 10**6),
        ("3TB", 3 * 10**12),
        ("1TiB", 2**40),
        ("0.3KiB", 307),
    ],
)
def test_a_size_is_read_as_bytes(text, count):
    assert Size.parse(text) == count
    assert re.search(Size.pattern, text)


@pytest.mark.parametrize(
    "text",
    ["", "512", "MiB", "512 M", "512M", "-1MiB", "1e3MiB", "1,5GiB", "1.GiB", ".5GiB", "512MIB",
     "1  GiB", " 1GiB", "1GiB ", "1GiB\n", "٣MiB", "1_000B"],
)  # fmt: skip
def test_a_size_without_a_known_unit_is_refused_and_the_units_are_named(text):
    with pytest.raises(ValueError, match=r"expected a size with its unit.*KiB.*TiB"):
        Size.parse(text)


def test_a_size_beyond_64_bits_is_refused():
    with pytest.raises(ValueError, match="below"):
        Size.parse("999999999TiB")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("250ms", 0.25),
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        ("1h0m1s1ms", 3601.001),
        ("1.5s", 1.5),
        ("0.5h", 1800),
    ],
)
def test_a_duration_is_read_as_seconds(text, seconds):
    assert Duration.parse(text) == seconds
    assert re.search(Duration.pattern, text)


@pytest.mark.parametrize(
    "text", ["", "5", "h", "5 m", "5min", "1m1h", "1m1m", "-5s", "1d", "1e3s", "5s\n", "1H", "٣s"]
)
def test_a_duration_without_known_units_in_order_is_refused(text):
    with pytest.raises(ValueError, match=r"expected a duration with its unit.*h, m, s, ms"):
        Duration.parse(text)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Size(0), "0B"),
        (Size(512 * 2**20), "512MiB"),
        (Size(3 * 2**29), "1536MiB"),
        (Size(2 * 10**9), "2GB"),
        (Size(1023), "1023B"),
        (Duration(0), "0s"),
        (Duration(5400), "1h30m"),
        (Duration(0.25), "250ms"),
        (Duration(3601.001), "1h1s1ms"),
    ],
)
def test_a_value_is_written_as_people_write_it(value, text):
    assert str(value) == text


def test_msgspec_writes_sizes_and_durations_as_text_and_nothing_else():
    values = [Size(2048), Duration(90)]
    assert msgspec.json.encode(values, enc_hook=encode_unit) == b'["2KiB","1m30s"]'
    with pytest.raises(NotImplementedError):
        encode_unit(object())
