"""The wheel and the source distribution: their files, and a run of the installed wheel outside the checkout."""

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("actors", "fedraa", "schedulers")
BUILD = "import sys, setuptools.build_meta as backend; getattr(backend, sys.argv[1])(sys.argv[2])"
SMALL = ("--hidden", "8", "--local-steps", "1", "--quiet")


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build both distributions from a copy, because a build in the checkout would reuse files of earlier builds."""
    source = tmp_path_factory.mktemp("source")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, source)
    folder = tmp_path_factory.mktemp("dist")
    for kind in ("build_sdist", "build_wheel"):
        command = [sys.executable, "-c", BUILD, kind, str(folder)]
        built = subprocess.run(command, cwd=source, check=True, capture_output=True, text=True)
        # Setuptools warns about folders that later versions may leave out of the wheel.
        assert "Package would be ignored" not in built.stdout + built.stderr
    return folder


def package_files() -> set[str]:
    """Return the files of the packages in the checkout, relative to it."""
    paths = [path for name in PACKAGES for path in (ROOT / name).rglob("*") if path.is_file()]
    return {path.relative_to(ROOT).as_posix() for path in paths if "__pycache__" not in path.parts}


def test_wheel_has_exactly_the_files_of_the_packages(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    metadata = {name for name in names if ".dist-info/" in name}
    assert names - metadata == package_files()
    assert {name.rpartition("/")[2] for name in metadata} == {
        "LICENSE",
        "METADATA",
        "RECORD",
        "WHEEL",
        "entry_points.txt",
        "top_level.txt",
    }


def test_source_distribution_has_exactly_the_files_of_the_packages_and_the_texts(dist: Path) -> None:
    (archive,) = dist.glob("*.tar.gz")
    with tarfile.open(archive) as files:
        names = {member.name.partition("/")[2] for member in files if member.isfile()}
    generated = {name for name in names if name.startswith("fedraa.egg-info/")} | {"PKG-INFO", "setup.cfg"}
    texts = {"CHANGELOG.md", "LICENSE", "MANIFEST.in", "README.md", "pyproject.toml"}
    assert names - generated == package_files() | texts


@pytest.mark.slow
@pytest.mark.cluster
def test_installed_wheel_runs_outside_the_checkout(dist: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    (site,) = (tmp_path / "venv" / "lib").glob("python*/site-packages")
    # The dependencies are those of this interpreter. Python does not process the .pth files in these folders, so that
    # the new environment cannot import the checkout.
    (site / "dependencies.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    (wheel,) = dist.glob("*.whl")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--quiet", "install", "--no-deps", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def execute(*command: str) -> str:
        process = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
        assert process.returncode == 0, (command, process.stderr)
        return process.stdout

    fedraa = str(python.with_name("fedraa"))
    where = execute(str(python), "-c", "import actors, fedraa, schedulers; print(actors, fedraa, schedulers)")
    assert where.count(f"from '{site}/") == len(PACKAGES)
    unknown = subprocess.run([python, "-c", "import benchmarks"], cwd=tmp_path, env=environment, capture_output=True)
    assert unknown.returncode == 1
    assert execute(fedraa, "--version") == f"fedraa {wheel.name.split('-')[1]}\n"
    execute(fedraa, "run", *SMALL, "--updates", "8", "--workers", "1", "--out", "runs/ray")
    execute(fedraa, "run", *SMALL, "--updates", "8", "--engine", "local", "--out", "runs/local")
    digests = [
        json.loads((tmp_path / "runs" / run / "summary.json").read_text())["model_sha256"] for run in ("ray", "local")
    ]
    assert digests[0] == digests[1]
    assert "consistent" in execute(fedraa, "replay", "runs/ray")
    execute(fedraa, "report", "runs/ray", "--out", "page.html")
    assert (tmp_path / "page.html").stat().st_size > 10_000
    execute(fedraa, "new", "study")
    execute(fedraa, "check", "study.parts:HighestLoss")
    board = subprocess.Popen(
        [fedraa, "board", "runs"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        assert board.stdout is not None
        address = re.search(r"http://\S+", board.stdout.readline())
        assert address is not None
        with urllib.request.urlopen(address[0]) as page:
            assert b"<script" in page.read()
    finally:
        board.terminate()
        board.wait()
