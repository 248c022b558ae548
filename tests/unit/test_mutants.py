"""The list of `make mutants` fits the code: each text is in its file exactly once, and each test file exists."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "mutants"))

from mutants import MUTANTS  # noqa: E402


def test_every_mutant_changes_one_place_and_names_existing_test_files() -> None:
    assert len(MUTANTS) >= 60
    assert len({(mutant.file, mutant.old) for mutant in MUTANTS}) == len(MUTANTS)
    for mutant in MUTANTS:
        assert (ROOT / mutant.file).read_text().count(mutant.old) == 1, f"{mutant.file}: {mutant.old}"
        assert mutant.old != mutant.new
        assert all((ROOT / test).is_file() for test in mutant.tests)
