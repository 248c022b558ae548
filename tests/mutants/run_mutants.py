"""Make each of the small errors of mutants.py in the code, one after another, and check that its tests fail.

The errors are made in a copy of the repository. A process that has imported the libraries forks a child for each test
run. Words on the command line select the errors whose file or text contains one of the words.
"""

import importlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIBRARIES = ("torch", "numpy", "pandas", "pydantic", "hypothesis", "pytest", "rich", "scipy", "matplotlib.pyplot")
COPIED = ("actors", "benchmarks", "fedraa", "schedulers", "tests", "pyproject.toml", "README.md", "constraints.txt")
MAX_TEST_S = 600


def main(words: list[str]) -> int:
    sys.path.insert(0, str(Path(__file__).parent))
    from mutants import MUTANTS

    for name in LIBRARIES:
        importlib.import_module(name)
    chosen = [mutant for mutant in MUTANTS if not words or any(word in mutant.file + mutant.old for word in words)]
    survived = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = _copy(Path(folder))
        # Without an error the tests must pass. Otherwise a failure would mean nothing.
        for tests in dict.fromkeys(mutant.tests for mutant in chosen):
            assert _passes(tree, tests), f"{' '.join(tests)} fails without an error"
        print("without an error all tests pass", flush=True)  # noqa: T201
        for number, mutant in enumerate(chosen, 1):
            started = time.monotonic()
            path = tree / mutant.file
            text = path.read_text()
            assert text.count(mutant.old) == 1, f"{mutant.file} must contain this text once: {mutant.old}"
            path.write_text(text.replace(mutant.old, mutant.new))
            killed = not _passes(tree, mutant.tests)
            path.write_text(text)
            survived += [] if killed else [mutant]
            verdict = "detected" if killed else "NOT DETECTED"
            print(  # noqa: T201
                f"{number} of {len(chosen)}: {verdict} in {time.monotonic() - started:.0f} s: {mutant.file}: "
                f"{' '.join(mutant.new.split())}",
                flush=True,
            )
    print(f"the tests detect {len(chosen) - len(survived)} of {len(chosen)} errors")  # noqa: T201
    return 1 if survived else 0


def _copy(folder: Path) -> Path:
    for name in COPIED:
        source, target = ROOT / name, folder / name
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "results"))
        else:
            shutil.copy(source, target)
    return folder


def _passes(tree: Path, tests: tuple[str, ...]) -> bool:
    """Return True if these test files pass in the copy `tree` within MAX_TEST_S."""
    child = os.fork()
    if child == 0:
        os._exit(_test(tree, tests))
    give_up = time.monotonic() + MAX_TEST_S
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status) == 0
        if time.monotonic() > give_up:
            os.kill(child, 9)
            os.waitpid(child, 0)
            return False
        time.sleep(0.1)


def _test(tree: Path, tests: tuple[str, ...]) -> int:
    import pytest

    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree)
    sys.path[:] = [str(tree), *(path for path in sys.path if Path(path or ".").resolve() not in (ROOT, tree))]
    sys.dont_write_bytecode = True
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
