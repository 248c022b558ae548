"""Which client owns which sample: partitioners, built in and the user's own."""

from fedraa.data.partition.dirichlet import Dirichlet
from fedraa.data.partition.divide import PARTITIONERS, divide, make_partitioner
from fedraa.data.partition.iid import Iid
from fedraa.data.partition.labels import Labels
from fedraa.data.partition.partitioner import Partition, Partitioner, Shards

__all__ = [
    "PARTITIONERS",
    "Dirichlet",
    "Iid",
    "Labels",
    "Partition",
    "Partitioner",
    "Shards",
    "divide",
    "make_partitioner",
]
