"""What llama.cpp's own reader says to GGUF files; a process of its own, as it may abort.

    python -m tests.engine.llama_gguf LIBRARY < PATHS

LIBRARY is the libggml-base that llama-server is linked with. For each path, one a line, it answers
with a line of JSON: null when the file is refused, else the names of the keys, and the name, type,
bytes and place of each tensor.
"""

import ctypes
import json
import sys


class _Parameters(ctypes.Structure):
    """`struct gguf_init_params` of ggml/include/gguf.h."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("ctx", ctypes.c_void_p))


def load(path: str) -> ctypes.CDLL:
    """The library, with the types of the functions that are used."""
    library = ctypes.CDLL(path)
    context, number = ctypes.c_void_p, ctypes.c_int64
    for name, result, arguments in (
        ("gguf_init_from_file", context, (ctypes.c_char_p, _Parameters)),
        ("gguf_free", None, (context,)),
        ("gguf_get_n_kv", number, (context,)),
        ("gguf_get_key", ctypes.c_char_p, (context, number)),
        ("gguf_get_n_tensors", number, (context,)),
        ("gguf_get_tensor_name", ctypes.c_char_p, (context, number)),
        ("gguf_get_tensor_type", ctypes.c_int, (context, number)),
        ("gguf_get_tensor_size", ctypes.c_size_t, (context, number)),
        ("gguf_get_tensor_offset", ctypes.c_size_t, (context, number)),
        ("gguf_get_data_offset", ctypes.c_size_t, (context,)),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def read(library: ctypes.CDLL, path: str) -> dict[str, list[object]] | None:
    """What one file is to llama.cpp."""
    found = library.gguf_init_from_file(path.encode(), _Parameters(no_alloc=True, ctx=None))
    if not found:
        return None
    begin = library.gguf_get_data_offset(found)
    keys = [library.gguf_get_key(found, at) for at in range(library.gguf_get_n_kv(found))]
    tensors = [
        (
            library.gguf_get_tensor_name(found, at).decode("utf-8", "replace"),
            library.gguf_get_tensor_type(found, at),
            library.gguf_get_tensor_size(found, at),
            begin + library.gguf_get_tensor_offset(found, at),
        )
        for at in range(library.gguf_get_n_tensors(found))
    ]
    library.gguf_free(found)
    return {"keys": [key.decode("utf-8", "replace") for key in keys], "tensors": tensors}


def main() -> None:
    library = load(sys.argv[1])
    for line in sys.stdin:
        print(json.dumps(read(library, line.rstrip("\n"))), flush=True)


if __name__ == "__main__":
    main()
