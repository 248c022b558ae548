"""Data sets, and their partition among clients."""

from fedraa.data.dataset import Dataset
from fedraa.data.federated import Federated, federate
from fedraa.data.load import DATASETS, load_dataset
from fedraa.data.partition import Dirichlet, Iid, Labels, Partition, Partitioner, Shards, divide, make_partitioner

__all__ = [
    "DATASETS",
    "Dataset",
    "Dirichlet",
    "Federated",
    "Iid",
    "Labels",
    "Partition",
    "Partitioner",
    "Shards",
    "divide",
    "federate",
    "load_dataset",
    "make_partitioner",
]
