"""The search finds what trying everything finds: ten thousand small machines, nothing left out."""

import pytest
from tests.oracles import brute_force
from tests.oracles.cases import case
from tests.oracles.judge import cost, faults

from pannier.plan.pack import pack

CASES = 10_000
PART = 500
ENDLESS = 10**9


@pytest.mark.parametrize("first", range(0, CASES, PART))
def test_no_placement_is_better_than_the_one_that_is_found(first):
    for seed in range(first, first + PART):
        given = case(seed, devices=4, items=5)
        found = pack(given.levels, given.capacity, given.host, limit=ENDLESS)
        best = brute_force.answer(given.levels, given.capacity, given.host)
        said = found and (found.level, (*found.cost, -found.headroom))
        assert said == best, f"case {seed}"
        if found is None:
            continue
        items = given.levels[found.level]
        assert found.exact, f"case {seed}"
        assert faults(found, items, given.capacity, given.host) == [], f"case {seed}"
        assert cost(found, items) == found.cost, f"case {seed}"


def test_the_cases_are_of_every_sort():
    seen = {"none": 0, "lower": 0, "pooled": 0, "shared": 0, "split": 0, "moved": 0, "uneven": 0}
    for seed in range(PART):
        given = case(seed, devices=4, items=5)
        found = pack(given.levels, given.capacity, given.host, limit=ENDLESS)
        if found is None:
            seen["none"] += 1
            continue
        pooled, shared, extra, moved = found.cost
        seen["lower"] += found.level > 0
        seen["pooled"] += pooled > 0
        seen["shared"] += shared > 0
        seen["split"] += extra > 0
        seen["moved"] += moved > 0
        seen["uneven"] += found.headroom == 0
    assert min(seen.values()) > PART // 20, seen
