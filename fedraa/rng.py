"""Random generators that depend only on a seed, a name and indices."""

import hashlib
from collections.abc import Iterable
from functools import cache

import numpy as np

WORD = 2**32


def generator(seed: int, stream: str, *index: int) -> np.random.Generator:
    """Return the random generator of one draw, such as `generator(0, "jitter", client, turn)`.

    Generators with different streams or indices are independent. One exception: a stream gives the same numbers without
    an index and with the single index 0, because NumPy pads short seeds with zeros. A resumed, replayed or distributed
    run needs no saved generator states.

    Args:
        seed: The seed of the run.
        stream: The name of the purpose, such as `jitter`.
        index: Numbers that identify the draw.
    """
    return np.random.Generator(np.random.PCG64(_seed_sequence(seed, stream, index)))


def torch_seed(seed: int, stream: str, *index: int) -> int:
    """Return a 63-bit seed for a generator of torch. The arguments are those of `generator`."""
    words = _seed_sequence(seed, stream, index).generate_state(2, np.uint32)
    return (int(words[0]) << 31) ^ int(words[1])


def _seed_sequence(seed: int, stream: str, index: Iterable[int]) -> np.random.SeedSequence:
    """Return `SeedSequence([seed, key of the stream, *index])`.

    The numbers are split into words of 32 bits here, because NumPy would take more than twice the time.
    """
    words = [*_prefix_words(seed, stream)]
    for number in index:
        words += _split_words(number)
    return np.random.SeedSequence(np.array(words, np.uint32))


@cache
def _prefix_words(seed: int, stream: str) -> list[int]:
    """Return the 32-bit words of the seed and of the stream's key."""
    return _split_words(seed) + _split_words(_stream_key(stream))


def _split_words(number: int) -> list[int]:
    """Return a number as words of 32 bits, the lowest first; 0 is one word."""
    words = []
    high = int(number)
    while high >= WORD:
        high, word = divmod(high, WORD)
        words.append(word)
    return [*words, high]


def _stream_key(stream: str) -> int:
    return int.from_bytes(hashlib.blake2b(stream.encode(), digest_size=8).digest(), "little")
