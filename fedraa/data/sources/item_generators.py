"""The random generators of a data set. They are seeded before a read, and then restored."""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fedraa.data.sources.contents import ItemGenerator, inspect_contents
from fedraa.rng import WORD, torch_seed

# The generators of the functions in `random`, `numpy.random` and `torch`. The first two have no public name.
GLOBAL_GENERATORS: tuple[ItemGenerator, ...] = (
    random._inst,
    np.random.mtrand._rand,
    torch.default_generator,
)


@dataclass
class Draws:
    """The result of a block with seeded generators.

    Attributes:
        drew: True if the block drew random numbers. It is set at the end of the block.
    """

    drew: bool = False


class ItemGenerators:
    """The global generators of Python, NumPy and torch, and the generators in a data set object."""

    def __init__(self, held: Sequence[ItemGenerator] = ()) -> None:
        self._generators = (*GLOBAL_GENERATORS, *held)

    @classmethod
    def of(cls, holder: object) -> "ItemGenerators":
        return cls(inspect_contents(holder).generators)

    @contextmanager
    def seed_temporarily(self, seed: int, stream: str, *index: int) -> Iterator[Draws]:
        """Seed all generators with (seed, stream, index) for the block, and restore their states at its end."""
        draws = Draws()
        with self.restore_afterwards():
            fingerprints = []
            for place, generator in enumerate(self._generators):
                own_seed = torch_seed(seed, stream, *index, place)
                _seed_generator(generator, own_seed)
                fingerprints.append(_fingerprint(generator))
                _seed_generator(generator, own_seed)
            yield draws
            draws.drew = [_fingerprint(generator) for generator in self._generators] != fingerprints

    @contextmanager
    def restore_afterwards(self) -> Iterator[None]:
        """Restore the states of all generators at the end of the block."""
        before = [_get_state(generator) for generator in self._generators]
        try:
            yield
        finally:
            for generator, state in zip(self._generators, before, strict=True):
                _set_state(generator, state)


def _seed_generator(generator: ItemGenerator, seed: int) -> None:
    if isinstance(generator, random.Random):
        generator.seed(seed)
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = type(generator)(seed).state
    else:
        try:
            # Only a Mersenne Twister has `seed`, which is a hundred times faster than setting a state.
            generator.seed(divmod(seed, WORD))
        except TypeError:
            kind = generator.get_state(legacy=False)["bit_generator"]
            generator.set_state({**getattr(np.random, kind)(seed).state, "has_gauss": 0, "gauss": 0.0})


def _fingerprint(generator: ItemGenerator) -> int | bytes:
    """Return a value that changes if the generator draws a number.

    For torch it is the state, which can be read fast. For other generators it is the next 64 bits.
    """
    if isinstance(generator, random.Random):
        return generator.getrandbits(64)
    if isinstance(generator, torch.Generator):
        return generator.get_state().numpy().tobytes()
    if isinstance(generator, np.random.BitGenerator):
        return int(generator.random_raw())
    return generator.bytes(8)


def _get_state(generator: ItemGenerator) -> Any:
    if isinstance(generator, random.Random):
        return generator.getstate()
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    if isinstance(generator, np.random.BitGenerator):
        return generator.state
    return generator.get_state(legacy=False)


def _set_state(generator: ItemGenerator, state: Any) -> None:
    if isinstance(generator, random.Random):
        generator.setstate(state)
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = state
    else:
        generator.set_state(state)
