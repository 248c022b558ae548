"""Partitioners, which assign samples to clients. They are built-in or user-defined."""

from fedraa.data.partition.dirichlet import Dirichlet
from fedraa.data.partition.divide import PARTITIONERS, divide_samples, make_partitioner
from fedraa.data.partition.features import Noise, Rotation
from fedraa.data.partition.iid import Iid
from fedraa.data.partition.labels import Labels
from fedraa.data.partition.natural import Natural
from fedraa.data.partition.partitioner import Partition, Partitioner, Shards
from fedraa.data.partition.quantity import LogNormal, PowerLaw
from fedraa.data.partition.shards import SortedShards

__all__ = [
    "PARTITIONERS",
    "Dirichlet",
    "Iid",
    "Labels",
    "LogNormal",
    "Natural",
    "Noise",
    "Partition",
    "Partitioner",
    "PowerLaw",
    "Rotation",
    "Shards",
    "SortedShards",
    "divide_samples",
    "make_partitioner",
]
