"""The data set digits with some wrong training labels."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from fedraa.data.dataset import Dataset
from fedraa.data.load import load_dataset

WRONG = 0.3


def digits(data_dir: Path | None) -> Dataset:
    """Return the data set digits, in which the fraction `WRONG` of the training labels is wrong.

    The wrong labels are the same in every run. `data_dir` is not used.
    """
    data = load_dataset("digits")
    assert isinstance(data, Dataset)
    rng = np.random.default_rng(0)
    labels = data.y_train.copy()
    wrong = rng.permutation(len(labels))[: round(WRONG * len(labels))]
    labels[wrong] = (labels[wrong] + rng.integers(1, data.classes, len(wrong))) % data.classes
    return replace(data, y_train=labels)
