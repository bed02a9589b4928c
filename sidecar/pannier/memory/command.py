"""`pannier memory MODEL.gguf`: its options, and the answer as text.

The options have the words and the ranges of config.toml. What they mean together is said in
`--help`, above all what a context is: there are several readings of it around.

Must not: import at start what only an answer needs; every `pannier` command passes here.
"""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pannier.memory.question import Question

BACKENDS = ("cuda", "rocm", "vulkan", "sycl", "metal", "rpc")

_ABOUT = """
Reads the header of a GGUF file and prints what a llama-server takes with it, on each device and of
RAM. Nothing is started, loaded or asked for over a network. Where `pannier serve` has loaded the
same file with the same settings before, what that load took is printed instead.
"""

_CONTEXT = """
The context counts tokens per slot, as in config.toml: llama-server is given -c CONTEXT x SLOTS, and
every slot has CONTEXT tokens. With --unified it is given -c CONTEXT, and all slots share them. All
else is as `pannier serve` starts it: no prompt cache (--cache-ram 0), 4 checkpoints per slot
(--ctx-checkpoints 4), and weights that are read, not mapped.
"""


def add_parser(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
) -> argparse.ArgumentParser:
    """Add `memory`."""
    parser = commands.add_parser(
        "memory",
        help="how much memory a model takes; reads its header, starts nothing",
        description=_ABOUT,
        epilog=_CONTEXT,
    )
    parser.add_argument(
        "model", metavar="MODEL.gguf", type=_path, help="the file; of a model in shards any of them"
    )
    _add_launch(parser)
    _add_places(parser)
    _add_files(parser)
    parser.add_argument("--json", action="store_true", help="the same in bytes, for programs")
    parser.add_argument(
        "--state", type=Path, metavar="DIR",
        help="state folder of `pannier serve`, where loads are remembered",
    )  # fmt: skip
    parser.set_defaults(parser=parser)
    return parser


def _add_launch(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--context", type=_tokens, metavar="N", help="see below (default: the trained window)")
    add("--slots", type=_slots, default=1, metavar="N", help="requests at the same time")
    add(
        "--unified", action=argparse.BooleanOptionalAction, default=False,
        help="all slots share one cache",
    )  # fmt: skip
    add(
        "--kv-type", type=_kv, default=("f16", "f16"), metavar="T|K,V",
        help="type of the cache, or of its keys and its values (default: f16)",
    )  # fmt: skip
    add("--flash-attention", choices=("on", "off", "auto"), default="auto")
    add("--batch", type=_tokens, default=2048, metavar="N", help="default: %(default)s")
    add("--ubatch", type=_tokens, default=512, metavar="N", help="default: %(default)s")
    pooled = parser.add_mutually_exclusive_group()
    pooled.add_argument("--embedding", action="store_true", help="as the role embed starts it")
    pooled.add_argument("--rerank", action="store_true", help="as the role rerank starts it")


def _add_places(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--gpu-layers", type=_layers, metavar="N|all",
        help="the last N layers are on devices, the output layer counts as one (default: all)",
    )  # fmt: skip
    add(
        "--cpu-moe", type=_layers, default=0, metavar="N|all",
        help="the first N layers keep their experts in RAM (default: 0)",
    )  # fmt: skip
    add(
        "--devices", type=_devices, metavar="N",
        help="how many devices; 0: CPU only (default: 1, or as many as --tensor-split has shares)",
    )  # fmt: skip
    add("--tensor-split", type=_split, metavar="A,B", help="shares of the devices (default: equal)")
    add("--backend", choices=BACKENDS, default="cuda", help="of the devices (default: cuda)")


def _add_files(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--mmproj", type=_path, metavar="F", help="the projector of a vision or audio model")
    add("--draft", type=_path, metavar="F", help="a small model that drafts tokens for this one")


def text_of(args: argparse.Namespace) -> str:
    """The answer to `pannier memory …`, as text without a line end. Raises PannierError."""
    import msgspec

    from pannier.fleet.store import state_folder
    from pannier.memory.answer import answer
    from pannier.memory.report import lines_of, report_of

    found = answer(
        question_of(args), Path.cwd(), args.state or state_folder(os.environ, Path.home())
    )
    if args.json:
        return msgspec.json.format(msgspec.json.encode(report_of(found)), indent=2).decode()
    return "\n".join(lines_of(found))


def question_of(args: argparse.Namespace) -> "Question":
    """The question that the options are; ends the program where they contradict each other."""
    from pannier.memory.question import Question

    shares = len(args.tensor_split or ())
    devices = args.devices if args.devices is not None else max(1, shares)
    if shares and shares != devices:
        count = f"{devices} device{'' if devices == 1 else 's'}"
        args.parser.error(f"--tensor-split has {shares} shares for {count}: one each is needed")
    return Question(
        model=args.model,
        mmproj=args.mmproj,
        draft=args.draft,
        context=args.context,
        slots=args.slots,
        unified=args.unified,
        kv_k=args.kv_type[0],
        kv_v=args.kv_type[1],
        flash_attention=args.flash_attention,
        batch=args.batch,
        ubatch=args.ubatch,
        gpu_layers=args.gpu_layers,
        cpu_moe=args.cpu_moe,
        backend=args.backend,
        devices=devices,
        split=args.tensor_split,
        pooling="embed" if args.embedding else "rerank" if args.rerank else "none",
    )


def _path(text: str) -> str:
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError("expected the path of a file")
    return text


def _tokens(text: str) -> int:
    from pannier.config.schema import Tokens

    return _whole(text, *_range(Tokens))


def _slots(text: str) -> int:
    from pannier.config.schema import Model

    return _whole(text, *_range(Model.__annotations__["slots"]))


def _layers(text: str) -> int | None:
    from pannier.config.schema import Layers

    return None if text == "all" else _whole(text, *_range(Layers), other=' or "all"')


def _devices(text: str) -> int:
    from pannier.memory.question import MOST_DEVICES

    return _whole(text, 0, MOST_DEVICES)


def _split(text: str) -> tuple[int, ...]:
    from pannier.config.schema import Weight

    return tuple(_whole(each, *_range(Weight)) for each in text.split(","))


def _kv(text: str) -> tuple[str, str]:
    from typing import get_args

    from pannier.config.schema import KvType

    types: tuple[str, ...] = get_args(KvType)
    found = text.split(",")
    if len(found) > 2 or not set(found) <= set(types):
        raise argparse.ArgumentTypeError(
            f"expected one type, or one for keys and one for values as in q8_0,f16;"
            f" found {text[:80]!r}; types: {', '.join(types)}"
        )
    return found[0], found[-1]


def _range(annotation: Any) -> tuple[int, int]:  # noqa: ANN401  what a type checker calls a type
    from pannier.config.shape import shapes

    (shape,) = shapes(annotation)
    return shape.ge or 0, shape.le or 0


def _whole(text: str, least: int, most: int, *, other: str = "") -> int:
    if text.isascii() and text.isdecimal() and len(text) < 20 and least <= int(text) <= most:
        return int(text)
    raise argparse.ArgumentTypeError(
        f"expected a whole number from {least} to {most}{other}, found {text[:80]!r}"
    )
