"""A wheel is built, and runs where nothing of this checkout is."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_wheel_runs_without_the_checkout(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    unwanted = shutil.ignore_patterns("__pycache__", "results", "*.egg-info")
    for name in ("fedraa", "actors", "schedulers", "benchmarks"):
        shutil.copytree(ROOT / name, source / name, ignore=unwanted)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "--quiet"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", str(tmp_path), str(source)], check=True)
    (wheel,) = tmp_path.glob("fedraa-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(target), str(wheel)], check=True)
    shutil.rmtree(source)
    kinds = (".py", ".css", ".html", ".js", ".npy")
    there = {path.relative_to(target) for path in target.rglob("*") if path.suffix in kinds}
    here = [path for name in ("fedraa", "actors", "schedulers") for path in (ROOT / name).rglob("*")]
    assert {path.relative_to(ROOT) for path in here if path.suffix in kinds} <= there

    def fedraa(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "fedraa", *words],
            cwd=tmp_path,
            env=os.environ | {"PYTHONPATH": str(target), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    few = ["--engine", "local", "--hidden", "8", "--updates", "8", "--local-steps", "1", "--quiet"]
    fedraa("run", *few, "--out", "run")
    assert "consistent" in fedraa("replay", "run")
    fedraa("report", "run", "--out", "page.html")
    fedraa("new", "study")
    told = subprocess.run(
        [sys.executable, "-c", "import fedraa; print(fedraa.__file__)"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.startswith(str(target))
