"""Every random stream is a pure function of (seed, name, index): nothing to save, nothing to restore."""

import hashlib
from functools import cache

import numpy as np


def generator(seed: int, stream: str, *index: int) -> np.random.Generator:
    """The generator of one draw, e.g. `generator(0, "jitter", client, turn)`.

    Streams are independent of each other and of the order in which they are asked for, so a run may be
    resumed, replayed or spread over processes without carrying generator states along.
    """
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, _key(stream), *index])))


def torch_seed(seed: int, stream: str, *index: int) -> int:
    """A 63-bit seed for torch's own generator, of the same streams."""
    words = np.random.SeedSequence([seed, _key(stream), *index]).generate_state(2, np.uint32)
    return (int(words[0]) << 31) ^ int(words[1])


@cache
def _key(stream: str) -> int:
    return int.from_bytes(hashlib.blake2b(stream.encode(), digest_size=8).digest(), "little")
