"""The options of `python -m benchmarks run`."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from fedraa.errors import InputError
from fedraa.report.cells import check_nonempty_and_unique
from fedraa.settings.terms import Terms


@dataclass(frozen=True)
class RunOptions:
    """The options of a study.

    The study named `race` has further options. It compares tuned methods by the time to an accuracy.

    Attributes:
        quick: Run the study at a small size, which takes a few minutes on two cores.
        standard: Run the study at a medium size with real data, which takes at most about 40 minutes on two cores.
        paper: Run the study at the size that the paper used.
        data_dir: The folder of the datasets.
        out: The folder of the runs and the results.
        seeds: The seeds of every cell of the table (default: the seeds of the study).
        jobs: The number of runs at the same time (default: one per core, for the study `race` 1).
        terms: The source of all hyperparameters, as in `fedraa compare` (default: those of the study).
        tuned: The file of tuned values, if `terms` is tuned: `fedraa tune` wrote it. For the study `race`, the tuned
            values of an earlier study.
        setting: The settings of the study `race` (default: all).
        methods: The methods of the study `race` (default: all).
        parts: The parts of the study `race`: tuned, untuned, long or long-untuned (default: all, in that order).
        extend: The folder of an earlier study `race`. The new pages use its tuned values and also show its runs.
    """

    quick: tyro.conf.FlagCreatePairsOff[bool] = False
    standard: tyro.conf.FlagCreatePairsOff[bool] = False
    paper: tyro.conf.FlagCreatePairsOff[bool] = False
    data_dir: Path | None = None
    out: Path = Path("runs/studies")
    seeds: tuple[int, ...] | None = None
    jobs: int | None = None
    terms: Terms | None = None
    tuned: Path | None = None
    setting: tuple[str, ...] | None = None
    methods: tuple[str, ...] | None = None
    parts: tuple[str, ...] | None = None
    extend: Path | None = None

    def __post_init__(self) -> None:
        # The names of runs depend on this path, so it must not depend on the way in which the user wrote it.
        if self.data_dir is not None:
            object.__setattr__(self, "data_dir", self.data_dir.resolve())

    def check_numbers(self) -> None:
        """Raise InputError if an option has a repeated value or a number outside its range."""
        if self.jobs is not None and self.jobs < 1:
            raise InputError("jobs", got=self.jobs, expected="a number from 1")
        lists = {"seeds": self.seeds, "setting": self.setting, "methods": self.methods, "parts": self.parts}
        check_nonempty_and_unique(**{field: values for field, values in lists.items() if values is not None})
        if self.seeds and min(self.seeds) < 0:
            raise InputError("seeds", got=self.seeds, expected="numbers from 0")

    def check_for_study(self, study: str) -> None:
        """Raise InputError if an option is set that only the study named `race` has."""
        if (self.setting, self.methods, self.parts, self.extend) != (None, None, None, None):
            raise InputError(
                "study", "--setting, --methods, --parts and --extend belong to the study 'race'", got=study
            )

    def check_for_race(self) -> None:
        """Raise InputError if an option is set that the study named `race` does not have."""
        if self.standard or self.paper or self.terms is not None:
            raise InputError(
                "study",
                "the study 'race' has only one size, and it fixes the settings of its methods",
                hint="leave out --standard, --paper and --terms",
            )
