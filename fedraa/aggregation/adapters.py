"""The low-rank adapters of a model, as slices of the flat vector of its parameters.

A parameter belongs to an adapter if it has a name that `fedraa.lora` or peft uses for adapters.
"""

import math
import re
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from torch import nn

from fedraa.messages import Vector
from fedraa.models.lora import Adapted
from fedraa.submodels import Traced

_A = re.compile(r"(?P<layer>(.*\.)?)(?P<kind>lora_(embedding_)?)A(?P<rest>(\..+)?)")
Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Pair:
    """One low-rank adapter: two matrices A and B. It adds scale * B A to the weight of its layer.

    Attributes:
        a: The slice of A [rank, in, ...] in the flat vector of all parameters.
        b: The slice of B [out, rank, ...].
        rank: The rank of the adapter.
        merged: The slice of the layer's weight, if the weight includes scale * B A; otherwise None.
        scale: The factor of B A.
        table: True if the layer is an embedding. The transpose of B A is then added.
        padding: The index of the embedding's padding row, which never changes, because its column of A is 0. None if
            there is no padding row.
    """

    a: slice
    b: slice
    rank: int
    merged: slice | None = None
    scale: float = 1.0
    table: bool = False
    padding: int | None = None

    @property
    def fan_in(self) -> int:
        """The number of values in a row of the matrix A; 1 for an embedding.

        The initial values of A are between -1 / sqrt(fan_in) and 1 / sqrt(fan_in).
        """
        if self.table:
            return 1
        return int(self.a.stop - self.a.start) // self.rank

    def begin(self, params: Vector, rng: np.random.Generator) -> None:
        """Set the adapter's matrix A to new random values, and its matrix B to 0."""
        start = rng.uniform(-1, 1, self.a.stop - self.a.start) / math.sqrt(self.fan_in)
        if self.padding is not None:
            start.reshape(self.rank, -1)[:, self.padding] = 0
        params[self.a] = start
        params[self.b] = 0

    def read_factors(self, params: Vector) -> tuple[Matrix, Matrix]:
        """Return the matrices B [out, rank] and A [rank, in] in float64, from the model's parameters [d]."""
        b, a = (params[part].astype(np.float64) for part in (self.b, self.a))
        return b.reshape(-1, self.rank), a.reshape(self.rank, -1)

    def change(self, params: Vector) -> Matrix:
        """Return scale * B A, the term that the adapter adds to the layer's weight, in the order of the flat weight."""
        b, a = self.read_factors(params)
        product = b @ a
        if self.table:
            product = product.T
        return self.scale * product.reshape(-1)

    def squared_norm(self, params: Vector) -> float:
        """Return ||B A||^2, computed as tr(B'B AA') without the product B A."""
        b, a = self.read_factors(params)
        return float(np.einsum("ij,ji->", b.T @ b, a @ a.T))


def find_adapters(traced: Traced) -> list[Pair]:
    """Return the adapters of a model, in the order of its parameters."""
    shapes = dict(zip(traced.names, traced.shapes, strict=True))
    places = traced.places
    modules = dict(traced.module.named_modules())
    pairs = []
    for name, shape in shapes.items():
        match = _A.fullmatch(name)
        if match is None:
            continue
        other = f"{match['layer']}{match['kind']}B{match['rest']}"
        if other not in shapes or shapes[other][1:2] != shape[:1]:
            continue
        layer = modules.get(match["layer"].rstrip("."))
        pair = Pair(places[name], places[other], shape[0])
        if isinstance(layer, Adapted):
            pair = replace(pair, merged=places.get(f"{match['layer']}merged"), scale=layer.scale)
            if isinstance(layer.base, nn.Embedding):
                pair = replace(pair, table=True, padding=layer.base.padding_idx)
        pairs.append(pair)
    return pairs
