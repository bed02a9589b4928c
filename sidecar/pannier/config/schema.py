"""The typed shape of config.toml: what may be written there, what it means, what it defaults to.

These structs are the one source of that: the reader (`load`) takes the types, ranges and required
keys from them, and the JSON Schema that editors use (`json_schema`) takes the descriptions too. A
new key is one field here; nothing else has to learn of it. Rules that need more than one value are
in `validate`.

Must not: read a file, or hold a value that cannot be written in TOML.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pannier.config.address import split_listen
from pannier.config.json_schema import json_schema
from pannier.config.units import Duration, Size

__all__ = [
    "Config",
    "Duration",
    "Engine",
    "KvPair",
    "KvType",
    "Memory",
    "Model",
    "Peer",
    "Placement",
    "Role",
    "Server",
    "Size",
    "schema_json",
    "split_listen",
]

Role = Literal["chat", "vision", "embed", "rerank"]
KvType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]

Text = Annotated[str, Meta(min_length=1)]
Tokens = Annotated[int, Meta(ge=1, le=16_777_216)]
Layers = Annotated[int, Meta(ge=0, le=10_000)]
DeviceIndex = Annotated[int, Meta(ge=0, le=1023)]
Weight = Annotated[int, Meta(ge=1, le=1_000_000)]


class Server(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where clients reach Pannier, and who may."""

    listen: Annotated[
        Text,
        Meta(
            description="Address and port to listen on. Anything but loopback needs api_key_file.",
            examples=["127.0.0.1:8484", "0.0.0.0:8484", "[::1]:8484"],
        ),
    ] = "127.0.0.1:8484"
    api_key_file: Annotated[
        Text | None, Meta(description="File with the keys that clients send, one a line.")
    ] = None
    admin_key_file: Annotated[
        Text | None,
        Meta(description="File with the keys for changes; without it the client keys are used."),
    ] = None
    allow_http_placement: Annotated[
        bool, Meta(description="Let clients change the placement tables of this file over HTTP.")
    ] = False
    event_header: Annotated[
        Text | None,
        Meta(
            description="Streaming requests that carry this header, not empty, get Open WebUI's "
            "status events while their model loads. Absent: none do.",
            examples=["X-OpenWebUI-Message-Id"],
        ),
    ] = None
    allowed_hosts: Annotated[
        tuple[Text, ...],
        Meta(
            description="Further names by which clients may reach this server (Host header). "
            "Loopback names and the listen address are always allowed."
        ),
    ] = ()
    allowed_origins: Annotated[
        tuple[Text, ...],
        Meta(description="Web pages of other origins that may call this server from a browser."),
    ] = ()


class Engine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The programs that run models."""

    host: Annotated[
        Literal["auto", "llama-swap", "direct"],
        Meta(
            description="What runs the models: llama-swap, or Pannier itself (direct). "
            "auto takes llama-swap where it is found."
        ),
    ] = "auto"
    llama_swap: Annotated[Text, Meta(description="llama-swap: a name on PATH, or a path.")] = (
        "llama-swap"
    )
    llama_server: Annotated[Text, Meta(description="llama-server: a name on PATH, or a path.")] = (
        "llama-server"
    )
    args: Annotated[
        tuple[str, ...],
        Meta(
            description="Arguments appended to every llama-server. Those that contradict what is "
            "planned are refused, with the key to use instead."
        ),
    ] = ()
    env: Annotated[
        dict[str, str], Meta(description="Environment variables of every llama-server.")
    ] = {}
    rpc: Annotated[
        tuple[Text, ...],
        Meta(
            description='ggml-rpc-server endpoints, "host:port". They have no password: '
            "use them on networks that you trust, and nowhere else."
        ),
    ] = ()


class Memory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of each device models may take."""

    reserve: Annotated[
        Size | dict[str, Size],
        Meta(
            description="Kept free on every device; a table sets it per device "
            "(a label or UUID from `pannier status`)."
        ),
    ] = Size(512 * 2**20)
    learn: Annotated[
        bool, Meta(description="Correct the estimates by what earlier loads really took.")
    ] = True


class KvPair(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Types of the two halves of the KV cache."""

    k: Annotated[KvType, Meta(description="Type of the keys.")]
    v: Annotated[
        KvType, Meta(description="Type of the values; a quantised one needs flash attention.")
    ]


class Model(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One model; the name of the table is the id that clients send."""

    role: Annotated[Role, Meta(description="What the model is for.")] = "chat"
    path: Annotated[
        Text,
        Meta(
            description="The GGUF file, relative to this file. Of a model in shards: any of them.",
            examples=["models/Qwen3-8B-Q4_K_M.gguf"],
        ),
    ]
    mmproj: Annotated[
        Text,
        Meta(
            description='The projector of a vision model: a path, "auto" (the one beside the '
            'model) or "none".',
            examples=["auto", "none", "models/mmproj-F16.gguf"],
        ),
    ] = "auto"
    context: Annotated[
        Tokens | None,
        Meta(description="Tokens per slot. Absent: as many as fit, up to the trained window."),
    ] = None
    min_context: Annotated[
        Tokens,
        Meta(
            description="The model is refused rather than run with fewer tokens per slot than "
            "this. Where it is absent, a smaller context lowers it."
        ),
    ] = 4096
    slots: Annotated[
        Annotated[int, Meta(ge=1, le=256)],
        Meta(description="Requests that are answered at the same time."),
    ] = 1
    kv_type: Annotated[
        KvType | KvPair,
        Meta(description="Type of the KV cache, or one each for keys (k) and values (v)."),
    ] = "f16"
    flash_attention: Annotated[
        Literal["auto", "on", "off"], Meta(description="Flash attention; auto: where it works.")
    ] = "auto"
    gpu_layers: Annotated[
        Literal["auto", "all"] | Layers,
        Meta(description="Layers on the GPUs; auto moves some to RAM only when it must."),
    ] = "auto"
    cpu_moe: Annotated[
        Literal["auto", "all"] | Layers,
        Meta(description="Layers whose experts stay in RAM; auto: as few as it can."),
    ] = "auto"
    batch: Annotated[Tokens, Meta(description="Tokens of a prompt read in one go.")] = 2048
    ubatch: Annotated[
        Tokens, Meta(description="Tokens computed at once, at most batch; costs memory.")
    ] = 512
    draft: Annotated[
        Text | None, Meta(description="A small GGUF file that drafts tokens for this model.")
    ] = None
    aliases: Annotated[
        tuple[str, ...], Meta(description="Other names that clients may send for this model.")
    ] = ()
    preload: Annotated[bool, Meta(description="Load the model at start and after each change.")] = (
        True
    )
    keep: Annotated[bool, Meta(description="Never swap the model out for another one.")] = False
    ttl: Annotated[
        Duration, Meta(description='Unload after this long without a request; "0s": never.')
    ] = Duration(0)
    args: Annotated[
        tuple[str, ...],
        Meta(
            description="Arguments appended to this llama-server, after those of all. Those that "
            "contradict what is planned are refused, with the key to use instead."
        ),
    ] = ()
    env: Annotated[
        dict[str, str], Meta(description="Environment variables of this llama-server.")
    ] = {}


class Placement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the models of a role, or one model, run; the name of the table says which."""

    devices: Annotated[
        Annotated[tuple[DeviceIndex | Text, ...], Meta(min_length=1)],
        Meta(
            description="Devices in the order of the split: indices, or labels or UUIDs from "
            "`pannier status`. The first one is the main device.",
            examples=[[0, 1], ["CUDA0"]],
        ),
    ]
    tensor_split: Annotated[
        tuple[Weight, ...] | None,
        Meta(description="Shares of the model, one for each device.", examples=[[3, 1]]),
    ] = None
    replicas: Annotated[
        Annotated[int, Meta(ge=1, le=64)],
        Meta(description="Copies of the model that share its requests."),
    ] = 1
    force: Annotated[
        bool, Meta(description="Place it even where the memory does not seem to be enough.")
    ] = False


class Peer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Another host that speaks the OpenAI API and whose models are offered here too."""

    url: Annotated[
        Text,
        Meta(
            description="Where it listens, without /v1.",
            examples=["http://10.0.0.9:8484"],
        ),
    ]
    api_key_file: Annotated[
        Text | None, Meta(description="File with the key that is sent to it.")
    ] = None


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pannier's config.toml: which models to serve, and on what."""

    server: Annotated[Server, Meta(description="Where clients reach Pannier, and who may.")] = (
        Server()
    )
    engine: Annotated[Engine, Meta(description="The programs that run models.")] = Engine()
    memory: Annotated[Memory, Meta(description="How much of each device models may take.")] = (
        Memory()
    )
    models: Annotated[
        dict[str, Model], Meta(description="The models, by the id that clients send.")
    ] = {}
    placement: Annotated[
        dict[str, Placement],
        Meta(description="Where models run, by role or model id; the rest is automatic."),
    ] = {}
    peers: Annotated[
        dict[str, Peer], Meta(description="Other hosts whose models are offered here, by name.")
    ] = {}


def schema_json() -> bytes:
    """The JSON Schema of config.toml (draft-07), as `pannier schema` prints it."""
    return msgspec.json.format(msgspec.json.encode(json_schema(Config)), indent=2) + b"\n"
