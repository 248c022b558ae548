"""Random streams equal the streams of NumPy's seeding, for numbers of any size."""

import numpy as np
import pytest

from fedraa.rng import _stream_key, generator, torch_seed


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**70 + 5])
@pytest.mark.parametrize("index", [(), (0,), (1, 0), (2**33, np.int64(5))])
def test_generator_equals_numpy_seed_sequence_for_any_numbers(seed: int, index: tuple[int, ...]) -> None:
    expected = np.random.SeedSequence([seed, _stream_key("batches"), *index])
    drawn = generator(seed, "batches", *index).integers(2**63, size=4)
    assert drawn.tolist() == np.random.default_rng(expected).integers(2**63, size=4).tolist()


def test_torch_seed_differs_for_every_index() -> None:
    assert len({torch_seed(0, "dropout", client, turn) for client in range(9) for turn in range(9)}) == 81
