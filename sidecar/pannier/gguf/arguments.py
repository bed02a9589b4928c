"""The arguments of a llama-server as one text, equal for launches that take the same memory. Pure.

Two launches may differ in order, spelling, addresses, names and threads and still allocate the same
bytes. So that what one of them took is found again for the other, all that is brought into one
form. Arguments that are not known count: at worst a load is measured once more.

Must not: hold a secret; the text is kept in a file.
"""

import re
from collections.abc import Mapping, Sequence

_NO_MATTER = re.compile(
    r"-(?:a|t|tb|C|Cb|v|lv|s|to|cb|nocb)"
    r"|--(?:alias|host|port|path|api-prefix|timeout|offline|metrics|props|seed|samplers|temp"
    r"|top-[kp]|min-p|repeat-penalty|prio(?:-batch)?|poll(?:-batch)?|numa|jinja|no-jinja"
    r"|(?:no-)?(?:ui|webui|slots|cont-batching)|threads(?:-batch|-http)?|cpu-(?:mask|range).*"
    r"|log-.*|(?:log-)?verbos(?:e|ity)|chat-template.*|reasoning-.*|rpc|ssl-.*)"
)
"""Arguments that decide no buffer of b11434 (`--rpc`: the devices in use have identities)."""

_SECRET = re.compile(r"api[-_]key|hf[-_]token|-hft|password|secret", re.IGNORECASE)

_FILES = frozenset(
    {"-m", "--model", "-mm", "--mmproj", "-md", "--model-draft", "--spec-draft-model"}
)
"""That there is one counts; which one is said by the identity of the files."""

_SPELLINGS = {
    "--ctx-size": "-c",
    "--parallel": "-np",
    "--batch-size": "-b",
    "--ubatch-size": "-ub",
    "--cache-type-k": "-ctk",
    "--cache-type-v": "-ctv",
    "--flash-attn": "-fa",
    "--gpu-layers": "-ngl",
    "--n-gpu-layers": "-ngl",
    "--tensor-split": "-ts",
    "--split-mode": "-sm",
    "--main-gpu": "-mg",
    "--device": "-dev",
    "--cpu-moe": "-cmoe",
    "--n-cpu-moe": "-ncmoe",
    "--kv-unified": "-kvu",
    "--no-kv-offload": "-nkvo",
    "--override-tensor": "-ot",
    "--embeddings": "--embedding",
    "--rerank": "--reranking",
    "--model": "-m",
    "--mmproj": "-mm",
    "--model-draft": "-md",
    "--spec-draft-model": "-md",
    "--fit": "-fit",
}

_SEVERAL = frozenset({"-ot", "--lora", "--lora-scaled", "--control-vector"})
"""Arguments that add up; of all others the last one wins."""

_VARIABLES = ("LLAMA_ARG_", "GGML_")
_NO_VARIABLES = re.compile(r"LLAMA_ARG_(?:LOG_|HOST|PORT|THREADS|ALIAS|TIMEOUT|RPC)")


def arguments_of(argv: Sequence[str], env: Mapping[str, str]) -> str:
    """The arguments of a llama-server that may decide memory, as one text.

    Two launches have the same text when they differ only in order, spelling, addresses, names,
    threads and the like. `argv` may stand behind a launcher (`… -- llama-server …`).
    """
    words = list(argv[argv.index("--") + 1 :] if "--" in argv else argv)[1:]
    found: dict[str, list[str]] = {}
    for flag, values in _flags(words):
        name, text = _SPELLINGS.get(flag, flag), " ".join(values)
        if _NO_MATTER.fullmatch(flag) or _SECRET.search(flag):
            continue
        if name in _FILES:
            text = ""
        found[name] = [*found.get(name, []), text] if name in _SEVERAL else [text]
    parts = [f"{name} {text}".strip() for name in sorted(found) for text in found[name]]
    parts += [
        f"{name}={value}"
        for name, value in sorted(env.items())
        if name.startswith(_VARIABLES) and not (_NO_VARIABLES.match(name) or _SECRET.search(name))
    ]
    return " ".join(parts)


def is_fixed(arguments: str) -> bool:
    """Whether a launch with these arguments (of `arguments_of`) takes the same bytes every time.

    With `-fit on`, and where nothing is said of it, llama-server goes by the memory that is free.
    """
    return "-fit off" in arguments


def _flags(words: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The flags with their values; a word that begins with `-` and is no number is a flag."""
    found: list[tuple[str, list[str]]] = []
    for word in words:
        flag, equals, value = word.partition("=")
        if word.startswith("-") and not re.fullmatch(r"-[\d.,:-]*", word):
            glued = bool(equals) and flag.startswith("--")
            found.append((flag, [value]) if glued else (word, []))
        elif found:
            found[-1][1].append(word)
    return found
