"""Data sets, and their partition among clients."""

from fedraa.data.dataset import Dataset
from fedraa.data.federated import Federated, federate
from fedraa.data.load import DATASETS, load_dataset
from fedraa.data.partition import Partition, Scheme, Shards, partition

__all__ = [
    "DATASETS",
    "Dataset",
    "Federated",
    "Partition",
    "Scheme",
    "Shards",
    "federate",
    "load_dataset",
    "partition",
]
