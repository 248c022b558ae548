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
# The module that defines the small networks.
NETWORKS = "benchmarks.studies.recipes.networks"
Size = Literal["quick", "standard", "paper"]
SIZES: tuple[str, ...] = get_args(Size)
# Images of objects are cropped and mirrored. Images of digits are not, because a mirrored digit is not a digit.
AUGMENTED = {"transforms": ("crop", "flip")}


@dataclass(frozen=True)
class Scale:
    """The size of a study, and the folder of its data.

    The size `quick` takes minutes. `standard` uses real data and takes about 40 minutes on two cores. `paper` is the
    paper's size.
    """

    size: Size
    data_dir: Path | None

    @property
    def paper(self) -> bool:
        return self.size == "paper"

    def pick_value(self, quick: T, standard: T, paper: T) -> T:
        """Return the argument for this size, such as `quick` for the size "quick"."""
        return {"quick": quick, "standard": standard, "paper": paper}[self.size]

    @property
    def seeds(self) -> Sequence[int]:
        """The default seeds: five at the smaller sizes, three at the paper's size."""
        return self.pick_value((*SEEDS, 3, 4), (*SEEDS, 3, 4), SEEDS)

    def experiment(self, dataset: str, **fields: Any) -> Experiment:
        """Return an experiment on a data set.

        A field may be a path to a setting of the method, such as `local.sam_rho`.

        `cifar10-subset` and `cifar100-subset` are files in `data_dir`. Raises InputError if the data set needs
        `data_dir` and it is None.
        """
        fields = split_paths(fields, {})
        if dataset == "digits":
            return Experiment(dataset=dataset, **fields)
        if self.data_dir is None:
            hint = "give the folder that it is in; docs/research/claims.md lists its files"
            raise InputError("data_dir", f"this study needs {dataset}", hint=hint)
        if dataset.endswith("-subset"):
            return Experiment(dataset=str(self.data_dir / f"{dataset}.npz"), **fields)
        return Experiment(dataset=dataset, data_dir=self.data_dir, **fields)
