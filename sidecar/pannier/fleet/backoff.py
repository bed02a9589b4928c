"""How long to wait before the next try.

Exponential from one second to one minute, with jitter, so that several groups that lost the same
card do not come back in one moment. The randomness is passed in: this module stays a function.

Must not: sleep, or count tries.
"""

FIRST_S = 1.0
LONGEST_S = 60.0

STEADY_S = 300.0
"""Seconds of being ready after which earlier crashes are forgotten."""

MAX_TRIES = 6
"""Tries after which a crashing thing is called failed and waits for a request or an edit."""


def delay_s(attempt: int, jitter: float) -> float:
    """Seconds before retry number `attempt`, from 1; `jitter` in 0..1 adds up to a quarter."""
    base = min(LONGEST_S, FIRST_S * 2.0 ** max(0, min(attempt - 1, 16)))
    return min(LONGEST_S, base * (1 + jitter / 4))
