"""The options of `python -m benchmarks run`."""

from dataclasses import dataclass
from pathlib import Path

import tyro

from fedraa.errors import InputError
from fedraa.report.cells import check_each_once
from fedraa.settings.terms import Terms


@dataclass(frozen=True)
class RunOptions:
    """The options of a study. The study named `race` compares tuned methods by the time to an accuracy.

    Attributes:
        quick: True to run the study in a small size, which takes a few minutes on two cores.
        standard: True to run it in a medium size with real data, which takes at most about 40 minutes on two cores.
        paper: True to run it in the size that the paper used.
        data_dir: The folder of the datasets.
        out: The folder of the runs and the results.
        seeds: The seeds. Every cell of the study's table has one run per seed (default: the seeds of the study).
        jobs: The number of runs at the same time (default: one per core).
        terms: The source of all methods' hyperparameters, in place of those of the study: equal, paper or tuned, as in
            `fedraa compare`.
        tuned: The file that `fedraa tune` wrote, for the terms `tuned`; for the race, the tuned values of an earlier
            race.
        setting: The settings of the race (default: all).
        methods: The methods of the race (default: all).
        parts: The parts of the race, tuned, untuned, long or long-untuned (default: all, in that order).
        extend: The folder of an earlier race's results. Its tuned values and runs are reused and shown again.
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

    def check_numbers(self) -> None:
        """Raise InputError if an option has a repeated value or a number outside its range."""
        if self.jobs is not None and self.jobs < 1:
            raise InputError("jobs", got=self.jobs, expected="a number from 1")
        lists = {"seeds": self.seeds, "setting": self.setting, "methods": self.methods, "parts": self.parts}
        check_each_once(**{field: values for field, values in lists.items() if values is not None})
        if self.seeds and min(self.seeds) < 0:
            raise InputError("seeds", got=self.seeds, expected="numbers from 0")

    def check_for_study(self, study: str) -> None:
        """Raise InputError if an option is set that only the study named `race` has."""
        if (self.setting, self.methods, self.parts, self.extend) != (None, None, None, None):
            raise InputError(
                "study", "--setting, --methods, --parts and --extend belong to the study 'race'", got=study
            )

    def check_for_race(self) -> None:
        """Raise InputError if an option is set that the study named `race` lacks."""
        if self.standard or self.paper or self.terms is not None:
            raise InputError(
                "study",
                "the study 'race' has only one size, and it fixes the settings of its methods",
                hint="leave out --standard, --paper and --terms",
            )
