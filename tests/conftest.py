"""The options of the test suite, and what all tests share."""

import asyncio

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        help="write the expected files of tests/golden anew instead of comparing with them",
    )


def pytest_configure(config: pytest.Config) -> None:
    # "There is no loop", said once: else pytest-asyncio makes one by asking for it and never closes
    # it, which is an error at the end of a run now and then, with filterwarnings = error.
    asyncio.set_event_loop(None)
