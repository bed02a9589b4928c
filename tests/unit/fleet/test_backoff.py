"""The wait before the next try: it rises to a minute, spread out, and stays there."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from pannier.fleet.backoff import FIRST_S, LONGEST_S, MAX_TRIES, delay_s


def test_the_wait_doubles_from_a_second_up_to_a_minute():
    waits = [delay_s(attempt, 0.0) for attempt in range(1, 9)]
    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]


@given(st.integers(-(10**9), 10**9), st.floats(0, 1))
def test_a_wait_is_between_a_second_and_a_minute_whatever_is_asked(attempt, jitter):
    assert FIRST_S <= delay_s(attempt, jitter) <= LONGEST_S


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_later_wait_is_longer_whatever_the_jitter(one, other):
    tries = range(1, MAX_TRIES)
    for earlier, later in itertools.pairwise(tries):
        assert delay_s(earlier, one) < delay_s(later, other)


def test_the_jitter_is_a_quarter_at_most():
    assert delay_s(3, 1.0) == 5.0
