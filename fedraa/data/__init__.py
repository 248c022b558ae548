"""Data sets, their division among clients, and the sources from which clients read samples."""

from fedraa.data.check import as_dataset
from fedraa.data.dataset import Dataset
from fedraa.data.division import DivisionSettings, divide_dataset
from fedraa.data.federated import Federated
from fedraa.data.load import load_dataset
from fedraa.data.partition import divide_samples, make_partitioner
from fedraa.data.sources.federated_dataset import FederatedDataset
from fedraa.data.sources.rows import Rows
from fedraa.data.transforms import Transform, Transforms, make_transforms

__all__ = [
    "Dataset",
    "DivisionSettings",
    "Federated",
    "FederatedDataset",
    "Rows",
    "Transform",
    "Transforms",
    "as_dataset",
    "divide_dataset",
    "divide_samples",
    "load_dataset",
    "make_partitioner",
    "make_transforms",
]
