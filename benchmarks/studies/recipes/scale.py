"""The size of a study, and the folder of its data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

from benchmarks.studies.study import SEEDS
from fedraa.config.experiment import Experiment
from fedraa.config.overrides import split_paths
from fedraa.errors import InputError

T = TypeVar("T")
Size = Literal["quick", "standard", "paper"]
SIZES: tuple[str, ...] = get_args(Size)
# Augmentations for images of objects. Unlike digits, objects may be mirrored.
AUGMENTED = {"transforms": ("crop", "flip")}


@dataclass(frozen=True)
class Scale:
    """The size of a study, and the folder of its data.

    A study of the size `quick` takes minutes. At the size `standard` it uses real data and takes about 40 minutes on
    two cores. The size `paper` is that of the paper.
    """

    size: Size
    data_dir: Path | None

    @property
    def paper(self) -> bool:
        return self.size == "paper"

    def pick_value(self, quick: T, standard: T, paper: T) -> T:
        """Return the one of the three arguments that belongs to this size."""
        return {"quick": quick, "standard": standard, "paper": paper}[self.size]

    @property
    def seeds(self) -> Sequence[int]:
        """The seeds: five at the smaller sizes, where runs take seconds, because three separate methods less well."""
        return self.pick_value((*SEEDS, 3, 4), (*SEEDS, 3, 4), SEEDS)

    def experiment(self, dataset: str, **fields: Any) -> Experiment:
        """Return an experiment on a data set. `cifar10-subset` is a file in the folder of the data.

        The fields may include paths of settings within the method. Raises ValueError if the data set needs the folder
        of the data and there is none.
        """
        fields = split_paths(fields, {})
        if dataset == "digits":
            return Experiment(dataset=dataset, **fields)
        if self.data_dir is None:
            raise InputError("data_dir", f"this study needs {dataset}", hint="give the folder that it is in")
        if dataset == "cifar10-subset":
            return Experiment(dataset=str(self.data_dir / f"{dataset}.npz"), **fields)
        return Experiment(dataset=dataset, data_dir=self.data_dir, **fields)
