"""Data sets in which samples belong to natural clients, such as the writers of texts."""

from collections.abc import Callable
from pathlib import Path

from fedraa.data.natural.celeba import read_celeba
from fedraa.data.natural.femnist import read_femnist
from fedraa.data.natural.reddit import read_reddit
from fedraa.data.natural.sent140 import read_sent140
from fedraa.data.natural.shakespeare import read_shakespeare
from fedraa.data.natural.stackoverflow import read_stackoverflow
from fedraa.data.sources.federated_dataset import FederatedDataset

NATURAL: dict[str, Callable[[Path | None], FederatedDataset]] = {
    "femnist": read_femnist,
    "shakespeare": read_shakespeare,
    "celeba": read_celeba,
    "sent140": read_sent140,
    "reddit": read_reddit,
    "stackoverflow": read_stackoverflow,
}
"""For each data set, the function that reads it from a folder."""

__all__ = ["NATURAL", "read_shakespeare"]
