"""The metadata of a header, asked for by name and never believed.

Files come from strangers and from converters of every age: a number may be missing, a text, an
array, negative or beyond all measure. What cannot be used reads as if it were not there, and is
noted, so that nobody downstream has to ask twice and nothing ever raises.

Must not: know what a key means.
"""

from pannier.gguf.header import Array, Header

LARGEST = 1 << 32
"""No dimension, count or size of a model comes near it; products of a few still fit 64 bits."""


class Keys:
    """Reads the keys of one architecture, and collects in `odd` those that are not usable."""

    def __init__(self, header: Header) -> None:
        self._metadata = header.metadata
        self.architecture = self.text("general.architecture")
        self.odd: set[str] = set()

    def text(self, key: str) -> str:
        """The text at a full key; empty when it is none."""
        found = self._metadata.get(key)
        return found if isinstance(found, str) else ""

    def has(self, name: str) -> bool:
        """Whether the architecture has that key, usable or not."""
        return f"{self.architecture}.{name}" in self._metadata

    def count(self, name: str, missing: int = 0) -> int:
        """A whole number of the architecture from 0; of an array its largest element."""
        values = self._values(name)
        return max(values) if values else missing

    def per_layer(self, name: str, layers: int, missing: int = 0) -> tuple[int, ...]:
        """One number per layer: the array, or the number for all; a short array goes on as zero."""
        values = self._values(name)
        if values is None:
            return (missing,) * layers
        if not isinstance(self._found(name), Array):
            return values * layers
        return (values + (0,) * layers)[:layers]

    def flag(self, name: str, missing: bool) -> bool:
        """A yes or no of the architecture."""
        found = self._found(name)
        return bool(found) if isinstance(found, int | float) else missing

    def array(self, name: str) -> tuple[int, ...] | None:
        """The elements of an array of numbers or of flags; None when there is no such array."""
        return self._values(name, flags=True) if isinstance(self._found(name), Array) else None

    def length(self, key: str) -> int:
        """How many elements the array at a full key has; 0 when it is none."""
        found = self._metadata.get(key)
        return found.count if isinstance(found, Array) else 0

    def _found(self, name: str) -> object:
        return self._metadata.get(f"{self.architecture}.{name}")

    def _values(self, name: str, flags: bool = False) -> tuple[int, ...] | None:
        found = self._found(name)
        if found is None:
            return None
        listed = found.values if isinstance(found, Array) else (found,)
        if not listed or not all(_usable(value, flags) for value in listed):
            self.odd.add(name)
            return None
        return tuple(int(value) for value in listed if isinstance(value, int | float))


def _usable(value: object, flags: bool) -> bool:
    if isinstance(value, bool):
        return flags  # llama.cpp refuses a flag where it wants a number
    return isinstance(value, int | float) and 0 <= value < LARGEST
