"""Reads NVML as a whole: the only module that imports pynvml, and only when it reads.

NVML sees the cards without a CUDA context, which would cost hundreds of MiB on each of them. When
NVML fails or a card is lost, NVML is shut down, so that the next reading begins anew and sees what
has come back: a library that was initialised before its device files were taken away answers
"Unknown Error" for ever.

Must not: load CUDA, run on the event loop (a driver may hang for minutes), or be used by two
threads at once.
"""

from typing import Any

from pannier.devices.inventory import HostMemory
from pannier.devices.nvml_card import CardReader, Fields
from pannier.devices.nvml_words import (
    DRIVER_NOT_LOADED,
    LIBRARY_NOT_FOUND,
    UNINITIALIZED,
    WHOLE,
    words,
)
from pannier.devices.reading import Card, NvmlReading


class NvmlSession:
    """NVML from its first reading to its end. One thread at a time may use it."""

    def __init__(self) -> None:
        self._begun = False
        self._users = 0
        self._spoke = False

    def read(self, host: HostMemory) -> NvmlReading:
        """One reading; `host` is the memory of chips that have none of their own.

        `absent` only as long as NVML never spoke: a driver that is unloaded later is a loss.
        """
        try:
            import pynvml
        except ImportError:
            why = "the Python package nvidia-ml-py is not installed"
            return NvmlReading(lost=why, absent=True)
        try:
            if not self._begun:
                pynvml.nvmlInit()
                self._begun = True
                self._users += 1
            reading, is_sound = _read(pynvml, host)
        except pynvml.NVMLError as error:
            self.shut_down()
            never = error.value in (DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND) and not self._spoke
            return NvmlReading(lost=words(error.value, str(error)), absent=never)
        self._spoke = self._spoke or not reading.lost
        if not is_sound:
            self.shut_down()
        return reading

    def shut_down(self) -> None:
        """Ends NVML where it has begun.

        NVML counts its users, so an end that failed is made up for: else it would never begin anew.
        """
        if not self._users:
            return
        import pynvml

        self._begun = False
        try:
            while self._users:
                pynvml.nvmlShutdown()
                self._users -= 1
        except pynvml.NVMLError as error:
            if error.value == UNINITIALIZED:
                self._users = 0


def _read(nvml: Any, host: HostMemory) -> tuple[NvmlReading, bool]:  # noqa: ANN401 (no types)
    """The reading, and whether NVML may go on as it is. Raises NVMLError when NVML fails."""
    count: int = nvml.nvmlDeviceGetCount()
    machine = Fields(nvml)
    driver = machine.read("the driver's version", nvml.nvmlSystemGetDriverVersion)
    reader = CardReader(nvml, host)
    asked = [Fields(nvml) for _ in range(count)]
    cards = tuple(card for index in range(count) for card in reader.card(index, asked[index]))
    is_sound = not any(fields.gone or fields.codes & WHOLE for fields in asked)
    if asked and all(fields.codes & WHOLE for fields in asked) and all(map(_is_silent, cards)):
        return NvmlReading(driver=driver, lost=_first_words(asked)), False
    problems = tuple(f"NVML: {problem}" for problem in machine.problems)
    return NvmlReading(driver=driver, cards=cards, problems=problems), is_sound


def _is_silent(card: Card) -> bool:
    """Neither who it is nor what it has was told."""
    return card.uuid is None and card.total is None


def _first_words(asked: list[Fields]) -> str:
    return next((problem for fields in asked for problem in fields.problems), "no card answers")
