"""Data sets, and their partition among clients."""

from fedraa.data.check import as_dataset
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
    "as_dataset",
    "divide",
    "federate",
    "load_dataset",
    "make_partitioner",
]
