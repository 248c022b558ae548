"""Partitioners, which assign samples to clients."""

from fedraa.data.partition.divide import PARTITIONERS, divide_samples, make_partitioner
from fedraa.data.partition.partitioner import Partitioner

__all__ = [
    "PARTITIONERS",
    "Partitioner",
    "divide_samples",
    "make_partitioner",
]
