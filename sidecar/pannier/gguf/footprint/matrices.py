"""The matrices of each layer by name: what widths are read from.

Must not: interpret a name.
"""

import re
from collections.abc import Iterable, Mapping

from pannier.gguf.footprint.shape import Shape
from pannier.gguf.header import Tensor

Dims = Mapping[str, tuple[int, ...]]
Matrices = list[dict[str, tuple[int, ...]]]

_WEIGHT = re.compile(r"(?:enc\.|dec\.)?blk\.(\d{1,3})\.(.+)\.weight")


def matrices_of(shape: Shape, tensors: Iterable[Tensor]) -> Matrices:
    """The dimensions of the weights of every layer of the trunk, by their names without layer."""
    layers: Matrices = [{} for _ in range(shape.layers)]
    for tensor in tensors:
        found = _WEIGHT.fullmatch(tensor.name)
        if found and int(found[1]) < shape.trunk:
            layers[int(found[1])][found[2]] = tensor.dims
    return layers


def width_out(dims: Dims, name: str) -> int:
    """How wide the product with a matrix is; 0 when there is none."""
    found = dims.get(name, ())
    return found[1] if len(found) > 1 else 0


def width_in(dims: Dims, name: str) -> int:
    """How wide rows are that a matrix is multiplied with; 0 when there is none."""
    found = dims.get(name, ())
    return found[0] if found else 0
