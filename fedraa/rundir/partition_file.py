"""The file partition.npz: the rows of the data set that each client has."""

from collections.abc import Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from fedraa.data import Federated
from fedraa.errors import InputError, one_line
from fedraa.messages import Index
from fedraa.rundir.atomic_files import replace_file
from fedraa.rundir.config_file import RESTORE
from fedraa.rundir.file_names import PARTITION, SUMMARY


class ClientRows(Sequence[Index]):
    """The row numbers of each client: `order[offsets[n]:offsets[n + 1]]` for client n."""

    def __init__(self, order: Index, offsets: Index) -> None:
        self.order = order
        self.offsets = offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, client: int) -> Index: ...
    @overload
    def __getitem__(self, client: slice) -> list[Index]: ...
    def __getitem__(self, client: Any) -> Any:
        numbers = range(len(self))[client]
        if isinstance(numbers, range):
            return [self[number] for number in numbers]
        return self.order[self.offsets[numbers] : self.offsets[numbers + 1]]


@dataclass(frozen=True)
class DataPartition:
    """The partition of a run's data among its clients.

    Attributes:
        train: The row numbers of each client's training samples. None if a function makes the data of each client.
        sizes: The number of training samples of each client.
        test: The row numbers of each client's test samples in the test data, or in the training data if
            `test_is_held_back`.
        test_is_held_back: True if the test samples are training samples that `validation` held back.
        names: The names of the clients in the data, if they have names.
    """

    train: ClientRows | None
    sizes: Index
    test: ClientRows
    test_is_held_back: bool
    names: tuple[str, ...] | None

    def __repr__(self) -> str:
        return f"<DataPartition of {int(self.sizes.sum())} training samples to {len(self.sizes)} clients>"


def write_partition(directory: Path, data: Federated) -> None:
    """Write the partition of the data, unless the file has it already. Equal partitions give equal bytes."""
    test_order = data.test_order
    if data.held_back is not None:
        test_order = data.held_back[test_order]
    arrays: dict[str, npt.NDArray[Any]] = {
        "train_offsets": data.offsets,
        "test_order": test_order,
        "test_offsets": data.test_offsets,
        "test_is_held_back": np.array(data.held_back is not None),
    }
    if data.order is not None:
        arrays["train_order"] = data.order
    if data.names is not None:
        arrays["names"] = np.array(data.names)
    content = BytesIO()
    np.savez_compressed(content, allow_pickle=False, **{name: _shrink_integers(arrays[name]) for name in arrays})
    path = directory / PARTITION
    if path.is_file() and path.read_bytes() == content.getvalue():
        return
    with replace_file(path) as stream:
        stream.write(content.getvalue())


def _shrink_integers(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array as int32 if its values fit."""
    if array.dtype.kind == "i" and array.size and array.max() < 2**31:
        return array.astype(np.int32)
    return array


def refuse_partition_directory(directory: Path) -> None:
    """Raise InputError if a run has a directory in place of its partition file, which it could not replace."""
    path = directory / PARTITION
    if path.is_dir():
        raise InputError("partition", f"{path} is a directory", expected="a file", hint="remove it or rename it")


def read_partition(directory: Path) -> DataPartition:
    """Return the partition of a run.

    Raises InputError if the file is missing or damaged.
    """
    path = directory / PARTITION
    hint = "resume the run, which restores it"
    if (directory / SUMMARY).exists():
        hint = RESTORE
    if not path.exists():
        raise InputError("partition", f"{directory} has no {PARTITION}", hint=hint)
    refuse_partition_directory(directory)
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        numbers = {name: arrays[name].astype(np.int64) for name in arrays if name.endswith(("order", "offsets"))}
        train = None
        if "train_order" in numbers:
            train = ClientRows(numbers["train_order"], numbers["train_offsets"])
        names = None
        if "names" in arrays:
            names = tuple(map(str, arrays["names"].tolist()))
        return DataPartition(
            train,
            np.diff(numbers["train_offsets"]),
            ClientRows(numbers["test_order"], numbers["test_offsets"]),
            bool(arrays["test_is_held_back"]),
            names,
        )
    # A damaged archive can raise any exception, such as zlib.error or EOFError.
    except Exception as error:
        problem = f"{path} is not a partition, or is damaged: {type(error).__name__}: {one_line(error)}"
        raise InputError("partition", problem, hint=hint) from None
