"""Partitioners, which assign samples to clients."""

from fedraa.data.partition.dirichlet import Dirichlet
from fedraa.data.partition.divide import PARTITIONERS, divide_samples, make_partitioner
from fedraa.data.partition.features import Colour, Noise, Rotation
from fedraa.data.partition.hsu import Hsu
from fedraa.data.partition.iid import Iid
from fedraa.data.partition.labels import Labels
from fedraa.data.partition.mixture import Mixture
from fedraa.data.partition.natural import Natural
from fedraa.data.partition.partitioner import Partition, Partitioner, Shards
from fedraa.data.partition.quantity import DirichletSizes, LogNormal, PowerLaw, Zipf
from fedraa.data.partition.shards import SortedShards

__all__ = [
    "PARTITIONERS",
    "Colour",
    "Dirichlet",
    "DirichletSizes",
    "Hsu",
    "Iid",
    "Labels",
    "LogNormal",
    "Mixture",
    "Natural",
    "Noise",
    "Partition",
    "Partitioner",
    "PowerLaw",
    "Rotation",
    "Shards",
    "SortedShards",
    "Zipf",
    "divide_samples",
    "make_partitioner",
]
