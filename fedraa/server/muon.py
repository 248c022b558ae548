"""Server optimizers with steps of a fixed length: normalised momentum, and Muon (Jordan et al. 2024).

The direction of a step comes from a linear minimization oracle (LMO). Of all vectors in the unit ball of a norm, the
LMO returns the vector with the largest scalar product with the momentum. The length of the delta does not matter, so
`server_lr` is in units of the weights.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod, sqrt
from typing import ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt
import torch

from fedraa.messages import Index, Mask, Shapes, Vector
from fedraa.numbers import Decay, Positive
from fedraa.server.optimizers import SERVER_OPTIMIZER, ServerOptimizer, move_params
from fedraa.vectors.chunked import map_chunks, scalar_product

Matrix = npt.NDArray[np.float32]

NEWTON_SCHULZ_STEPS = 5
# Factors p, q, r of each Newton-Schulz step, in Muon and in the code of Ringmaster LMO.
FACTORS: dict[str, tuple[tuple[float, float, float], ...]] = {
    "muon": ((3.4445, -4.7750, 2.0315),) * NEWTON_SCHULZ_STEPS,
    "per-step": (
        (8.156555, -22.483293, 15.878770),
        (4.042930, -2.808917, 0.500018),
        (3.891668, -2.772484, 0.506065),
        (3.285754, -2.368129, 0.464490),
        (2.346541, -1.709783, 0.423216),
    ),
}


@dataclass
class FixedLengthStep(ServerOptimizer):
    """theta += server_lr * lmo(m), m <- beta m + (1 - beta) delta.

    lmo is the linear minimization oracle of a norm, which a subclass defines. On a coordinate that no client trained,
    the argument of lmo is 0, and the momentum does not change.

    Attributes:
        server_lr: Length of the step, in units of the weights.
        beta: Decay of the momentum m.
        nesterov: True to step along beta m + (1 - beta) delta instead of m.
    """

    server_lr: Positive = 0.02
    beta: Decay = 0.95
    nesterov: bool = True

    keeps: ClassVar[str] = "m [d]"
    state_fields: ClassVar[tuple[str, ...]] = ("_m",)

    def start(self, size: int) -> None:
        self._m = np.zeros(size, np.float32)

    def memory(self, size: int) -> int:
        return 8 * size

    def step(self, params: Vector, delta: Vector, moved: Mask) -> None:
        direction = self._mix(delta, moved)
        self._minimize(direction, moved)
        move_params(params, self.server_lr, direction, moved)

    def _mix(self, delta: Vector, moved: Mask) -> Vector:
        """Mix the delta [d] into the momentum on the coordinates `moved` [d]. Return the argument of lmo [d]."""
        direction = np.zeros(len(delta), np.float32)
        old_weight = np.float32(self.beta)
        new_weight = np.float32(1 - self.beta)

        def mix_piece(piece: slice) -> None:
            m = self._m[piece]
            new = new_weight * delta[piece]
            np.copyto(m, old_weight * m + new, where=moved[piece])
            if self.nesterov:
                np.copyto(direction[piece], old_weight * m + new, where=moved[piece])
            else:
                np.copyto(direction[piece], m, where=moved[piece])

        map_chunks(len(delta), mix_piece)
        return direction

    @abstractmethod
    def _minimize(self, direction: Vector, moved: Mask) -> None:
        """Replace the direction [d] by lmo(direction), in place.

        The direction is 0 on all coordinates that no client trained, which are False in `moved` [d].
        """


@SERVER_OPTIMIZER.register("normalized-momentum")
@dataclass
class NormalizedMomentum(FixedLengthStep):
    """theta += server_lr * m / |m|, m <- beta m + (1 - beta) delta."""

    nesterov: bool = False

    state_fields: ClassVar[tuple[str, ...]] = ()

    def _minimize(self, direction: Vector, moved: Mask) -> None:
        length = sqrt(scalar_product(direction, direction))
        if length > 0:
            direction /= np.float32(length)


@SERVER_OPTIMIZER.register("muon")
@dataclass
class Muon(FixedLengthStep):
    """Muon (Jordan et al. 2024): theta += server_lr * the orthogonalised momentum of each matrix.

    For a matrix m = U S V^T the step is about sqrt(max(1, rows / columns)) * U V^T, by five Newton-Schulz steps.
    Tensors with more dimensions count as matrices, with the first dimension as rows. Vectors step along the plain
    momentum. With submodels, the matrix has only the rows and columns that some client trained.

    Source: transcriptions of the papers, and the code of Ringmaster LMO.

    Attributes:
        factors: The factors of the Newton-Schulz steps. `muon` has the same factors in each step. `per-step` has the
            factors of the code of Ringmaster LMO, with a result nearer to U V^T.
    """

    factors: Literal["muon", "per-step"] = "muon"

    state_fields: ClassVar[tuple[str, ...]] = ()

    def start(self, size: int) -> None:
        super().start(size)
        self._tensors: Shapes = ()

    def bind(self, size: int, tensors: Shapes = ()) -> Self:
        own = super().bind(size, tensors)
        own._tensors = tensors
        return own

    def _minimize(self, direction: Vector, moved: Mask) -> None:
        start = 0
        for shape in self._tensors:
            stop = start + prod(shape)
            if is_matrix(shape) and stop > start:
                matrix = (shape[0], (stop - start) // shape[0])
                self._orthogonalize_block(direction[start:stop].reshape(matrix), moved[start:stop].reshape(matrix))
            start = stop

    def _orthogonalize_block(self, matrix: Matrix, moved: Mask) -> None:
        """Orthogonalise a block of a matrix in place: the rows and columns in which clients trained an entry.

        All entries outside of the block must be 0.
        """
        block = np.ix_(moved.any(axis=1), moved.any(axis=0))
        part = matrix[block]
        rows, columns = part.shape
        matrix[block] = np.float32(sqrt(max(1, rows / max(1, columns)))) * orthogonalize(part, FACTORS[self.factors])


@dataclass(frozen=True)
class MatrixBlock:
    """The entries of one weight matrix in the buffer [k] of a submodel.

    Attributes:
        part: The positions of the entries in the buffer.
        shape: The numbers of rows and of columns in which the submodel has an entry.
        places: The position of each entry in the flattened block; None if the entries are the whole block in order.
        scale: sqrt(rows / columns); 1 for a tensor that is added to activations (see `is_added`).
    """

    part: slice
    shape: tuple[int, int]
    places: Index | None
    scale: float

    def orthogonalize(self, direction: Vector) -> None:
        """Replace the block U S V^T of the direction [k] by about scale * U V^T, in place. Missing entries are 0."""
        values = direction[self.part]
        places = slice(None) if self.places is None else self.places
        block = np.zeros(prod(self.shape), np.float32)
        block[places] = values
        result = np.float32(self.scale) * orthogonalize(block.reshape(self.shape), FACTORS["muon"])
        values[:] = result.reshape(-1)[places]


def is_matrix(shape: tuple[int, ...]) -> bool:
    """Return True if a tensor counts as a matrix, with its first dimension as rows."""
    return len(shape) > 1


def is_added(shape: tuple[int, ...]) -> bool:
    """Return True for a tensor [1, tokens, width], such as position embeddings, which are added to activations."""
    return len(shape) == 3 and shape[0] == 1


def find_blocks(tensors: Shapes, index: Index) -> list[MatrixBlock]:
    """Return the blocks of all weight matrices in a submodel.

    Args:
        tensors: The shape of each tensor of the model.
        index: The coordinates [k] of the submodel. The buffer has the tensors in the order of the model.
    """
    ends = np.cumsum([prod(shape) for shape in tensors])
    tensor_of = np.searchsorted(ends, index, side="right")
    blocks = []
    for number, shape in enumerate(tensors):
        first, last = np.searchsorted(tensor_of, (number, number + 1)).tolist()
        if not is_matrix(shape) or first == last:
            continue
        size = prod(shape)
        entries = index[first:last] - (ends[number] - size)
        rows, row_of = np.unique(entries // (size // shape[0]), return_inverse=True)
        columns, column_of = np.unique(entries % (size // shape[0]), return_inverse=True)
        places = row_of * len(columns) + column_of
        in_order = len(places) == len(rows) * len(columns) and bool((np.diff(places) == 1).all())
        scale = 1.0 if is_added(shape) else sqrt(len(rows) / len(columns))
        block = MatrixBlock(slice(first, last), (len(rows), len(columns)), None if in_order else places, scale)
        blocks.append(block)
    return blocks


def orthogonalize(matrix: Matrix, factors: tuple[tuple[float, float, float], ...]) -> Matrix:
    """Return an approximation of U V^T for a matrix U S V^T; zeros for a matrix of zeros.

    X starts as the matrix divided by its Frobenius norm. Each Newton-Schulz step is

        X <- p X + (q X X^T + r (X X^T)^2) X.

    All factors of X are polynomials in the first X X^T, so they are collected in a small matrix. Most products then
    are of matrices [rows, rows], if there are fewer rows than columns, and not of X itself.

    Args:
        matrix: The matrix [rows, columns].
        factors: p, q and r of each step.
    """
    if not matrix.any():
        return matrix
    rows, columns = matrix.shape
    values = matrix.reshape(-1)
    x = torch.from_numpy(matrix / np.float32(sqrt(scalar_product(values, values))))
    if rows > columns:
        x = x.T
    with _one_thread():
        gram = x @ x.T
        factor = torch.eye(len(x))
        for p, q, r in factors:
            step = torch.addmm(gram, gram, gram, beta=q, alpha=r)
            factor = torch.addmm(factor, step, factor, beta=p)
            half = torch.addmm(gram, step, gram, beta=p)
            gram = torch.addmm(half, step, half, beta=p)
        x = factor @ x
    if rows > columns:
        x = x.T
    return np.ascontiguousarray(x.numpy())


@contextmanager
def _one_thread() -> Iterator[None]:
    """Compute products of matrices in one thread, because their bits may depend on the number of threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
