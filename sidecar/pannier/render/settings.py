"""llama-server's settings that a plan decides, by every name that they go by. Pure.

One table for both sides: what we render and what a person writes in `args` and `env` are read by
the same rules, those of llama.cpp's own parser (common/arg.cpp, b11434, and the spellings of
earlier builds): `_` in a long flag is a `-`, a flag takes the next word as it is, a variable counts
where no flag says otherwise. `--flag=value` is understood too, as people write it and mean it.

Must not: judge; `conflicts` does.
"""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from pannier.render.flags import PORT_FLAG


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """One setting: its name here, and its names there, of which we write the first.

    `flags` take a value, `switches` stand for one. `variables` hold a value; those of
    `switch_variables` stand for one when they are on.
    """

    name: str
    flags: tuple[str, ...] = ()
    switches: dict[str, str] = {}
    variables: tuple[str, ...] = ()
    switch_variables: dict[str, str] = {}


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A setting as somebody gave it: `words` as written, `place` among the words or variables."""

    setting: str
    value: str
    words: str
    place: int | str


SETTINGS = (
    Setting(
        name="path",
        flags=(
            *("-m", "--model", "-mu", "--model-url", "-dr", "--docker-repo"),
            *("-hf", "-hfr", "--hf-repo", "-hff", "--hf-file"),
        ),
        variables=(
            *("LLAMA_ARG_MODEL", "LLAMA_ARG_MODEL_URL", "LLAMA_ARG_DOCKER_REPO"),
            *("LLAMA_ARG_HF_REPO", "LLAMA_ARG_HF_FILE"),
        ),
    ),
    Setting(name="alias", flags=("--alias", "-a"), variables=("LLAMA_ARG_ALIAS",)),
    Setting(name="host", flags=("--host",), variables=("LLAMA_ARG_HOST",)),
    Setting(name="port", flags=(PORT_FLAG,), variables=("LLAMA_ARG_PORT",)),
    Setting(name="context", flags=("-c", "--ctx-size"), variables=("LLAMA_ARG_CTX_SIZE",)),
    Setting(name="slots", flags=("-np", "--parallel"), variables=("LLAMA_ARG_N_PARALLEL",)),
    Setting(name="batch", flags=("-b", "--batch-size"), variables=("LLAMA_ARG_BATCH",)),
    Setting(name="ubatch", flags=("-ub", "--ubatch-size"), variables=("LLAMA_ARG_UBATCH",)),
    Setting(name="kv_k", flags=("-ctk", "--cache-type-k"), variables=("LLAMA_ARG_CACHE_TYPE_K",)),
    Setting(name="kv_v", flags=("-ctv", "--cache-type-v"), variables=("LLAMA_ARG_CACHE_TYPE_V",)),
    Setting(
        name="flash_attention", flags=("-fa", "--flash-attn"), variables=("LLAMA_ARG_FLASH_ATTN",)
    ),
    Setting(
        name="prompt_cache", flags=("--cache-ram", "-cram"), variables=("LLAMA_ARG_CACHE_RAM",)
    ),
    Setting(
        name="checkpoints",
        flags=("--ctx-checkpoints", "-ctxcp", "--swa-checkpoints"),
        variables=("LLAMA_ARG_CTX_CHECKPOINTS", "LLAMA_ARG_SWA_CHECKPOINTS"),
    ),
    Setting(name="rpc", flags=("--rpc",), variables=("LLAMA_ARG_RPC",)),
    Setting(name="devices", flags=("-dev", "--device"), variables=("LLAMA_ARG_DEVICE",)),
    Setting(
        name="layers",
        flags=("-ngl", "--gpu-layers", "--n-gpu-layers"),
        variables=("LLAMA_ARG_N_GPU_LAYERS",),
    ),
    Setting(name="split", flags=("-ts", "--tensor-split"), variables=("LLAMA_ARG_TENSOR_SPLIT",)),
    Setting(name="split_mode", flags=("-sm", "--split-mode"), variables=("LLAMA_ARG_SPLIT_MODE",)),
    Setting(name="main_device", flags=("-mg", "--main-gpu"), variables=("LLAMA_ARG_MAIN_GPU",)),
    Setting(name="fit", flags=("-fit", "--fit"), variables=("LLAMA_ARG_FIT",)),
    Setting(
        name="experts",
        flags=("--n-cpu-moe", "-ncmoe"),
        switches={"--cpu-moe": "all", "-cmoe": "all"},
        variables=("LLAMA_ARG_N_CPU_MOE",),
        switch_variables={"LLAMA_ARG_CPU_MOE": "all"},
    ),
    Setting(
        name="projector",
        flags=("--mmproj", "-mm", "-mmu", "--mmproj-url"),
        switches={"--no-mmproj": "none", "--no-mmproj-auto": "none"},
        variables=("LLAMA_ARG_MMPROJ", "LLAMA_ARG_MMPROJ_URL"),
        switch_variables={"LLAMA_ARG_NO_MMPROJ": "none", "LLAMA_ARG_NO_MMPROJ_AUTO": "none"},
    ),
    Setting(
        name="projector_device",
        flags=("-mmdev", "--mmproj-device"),
        variables=("MTMD_BACKEND_DEVICE",),
    ),
    Setting(
        name="draft",
        flags=(
            *("-md", "--model-draft", "--spec-draft-model"),
            *("-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"),
        ),
        variables=(
            *("LLAMA_ARG_SPEC_DRAFT_MODEL", "LLAMA_ARG_MODEL_DRAFT"),
            *("LLAMA_ARG_SPEC_DRAFT_HF_REPO", "LLAMA_ARG_HFD_REPO"),
        ),
    ),
    Setting(
        name="role",
        switches={
            **dict.fromkeys(("--embedding", "--embeddings"), "embed"),
            **dict.fromkeys(("--rerank", "--reranking"), "rerank"),
        },
        switch_variables={"LLAMA_ARG_EMBEDDINGS": "embed", "LLAMA_ARG_RERANKING": "rerank"},
    ),
)

BY_NAME = {setting.name: setting for setting in SETTINGS}

UNCOUNTED = frozenset(
    {
        *("-ot", "--override-tensor", "-ncffn", "--n-cpu-ffn", "-otd", "--override-tensor-draft"),
        *("--spec-draft-override-tensor", "--lora", "--lora-scaled", "--control-vector"),
        *("--control-vector-scaled", "-nr", "--no-repack", "--no-host", "--mlock", "--mmap"),
        *("-lm", "--load-mode", "-lzm", "--lazy-mode", "--spec-type", "--spec-default"),
        *("-ctkd", "--cache-type-k-draft", "--spec-draft-type-k"),
        *("-ctvd", "--cache-type-v-draft", "--spec-draft-type-v"),
        *("-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft", "--spec-draft-ngl"),
        *("-devd", "--device-draft", "--spec-draft-device", "-cmoed", "--cpu-moe-draft"),
        *("--spec-draft-cpu-moe", "-ncmoed", "--n-cpu-moe-draft", "--spec-draft-n-cpu-moe"),
        *("--spec-draft-ncmoe", "--mmproj-offload", "--no-mmproj-offload", "--image-max-tokens"),
        *("--mtmd-batch-max-tokens", "--kv-unified-per-slot", "-fitt", "--fit-target"),
        *("-fitc", "--fit-ctx", "-cd", "--ctx-size-draft"),
    }
)
"""Flags that change what a launch takes, for which config.toml has no key. They are a person's to
give, and no footprint counts them; of the others without a key, it counts -kvu, --swa-full and
-nkvo."""

_FLAGS = {flag: setting for setting in SETTINGS for flag in setting.flags}
_SWITCHES = {flag: (s, value) for s in SETTINGS for flag, value in s.switches.items()}
_VARIABLES = {name: setting for setting in SETTINGS for name in setting.variables}
_SWITCH_VARIABLES = {n: (s, value) for s in SETTINGS for n, value in s.switch_variables.items()}

_ON = ("on", "enabled", "true", "1")
_NUMBER = re.compile(r"-\d+")
_BARE_VALUE = {"flash_attention": "on"}
"""Before August 2025 `-fa` was a switch."""


_UNIFIED = ("-kvu", "--kv-unified")


def is_unified(args: Sequence[str]) -> bool:
    """Whether these arguments give all slots one cache."""
    return any(flag_of(word) in _UNIFIED for word in args)


def flag_of(word: str) -> str:
    """The flag in a word, without its `=value`, as llama-server looks it up."""
    flag = word.partition("=")[0] if word.startswith("-") else word
    return flag.replace("_", "-") if flag.startswith("--") else flag


def given_in(args: Sequence[str]) -> Iterator[Given]:
    """The settings among arguments, in their order. Any list of words will do."""
    at = 0
    while at < len(args):
        place, word = at, args[at]
        at += 1
        flag, equals = flag_of(word), "=" in word
        if flag in _SWITCHES:
            setting, value = _SWITCHES[flag]
            yield Given(setting=setting.name, value=value, words=word, place=place)
        elif (setting_of := _FLAGS.get(flag)) is not None:
            name, words = setting_of.name, word
            following = args[at] if at < len(args) else None
            if equals:
                value = word.partition("=")[2]
            elif following is None or (name in _BARE_VALUE and _is_flag(following)):
                value = _BARE_VALUE.get(name, "")
            else:
                value, words = following, f"{word} {following}"
                at += 1
            yield Given(setting=name, value=value, words=words, place=place)


def given_by(env: Mapping[str, str]) -> Iterator[Given]:
    """The settings among environment variables, by their names."""
    for name, value in sorted(env.items()):
        words = f"{name}={value}"
        if name in _VARIABLES:
            yield Given(setting=_VARIABLES[name].name, value=value, words=words, place=name)
        elif name in _SWITCH_VARIABLES and (value in _ON or "_NO_" in name):
            # The mere presence of a LLAMA_ARG_NO_… switches off, whatever its value.
            setting, stands_for = _SWITCH_VARIABLES[name]
            yield Given(setting=setting.name, value=stands_for, words=words, place=name)


def normal(setting: str, value: str) -> str | tuple[float, ...]:
    """A value in one form, so that two ways to write it are equal."""
    text = value.strip()
    if setting == "split":
        try:
            return tuple(float(share) for share in re.split("[,/]+", text))
        except ValueError:
            return text
    if setting in ("fit", "flash_attention"):
        text = "on" if text in _ON else text
        text = "off" if text in ("off", "disabled", "false", "0") else text
        return "auto" if text == "-1" else text
    if setting == "layers":
        return {"-1": "auto", "-2": "all"}.get(text, _decimal(text))
    return _decimal(text)


def _decimal(text: str) -> str:
    return str(int(text)) if re.fullmatch(r"[+-]?[0-9]{1,18}", text) else text


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not _NUMBER.fullmatch(word)
