"""A resumed run restores its partition.npz; a damaged summary.json is refused in a sentence."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from refusals import refuses

import fedraa as fl

SMALL: dict[str, Any] = {"clients": 3, "hidden": (8,), "local_steps": 1, "quiet": True, "engine": "local"}


@pytest.fixture(scope="module")
def run_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    out = tmp_path_factory.mktemp("runs") / "run"
    fl.run(method="fedavg", rounds=1, out=out, **SMALL)
    return {str(path.relative_to(out)): path.read_bytes() for path in out.rglob("*") if path.is_file()}


@pytest.fixture
def run(run_files: dict[str, bytes], tmp_path: Path) -> Path:
    for name, content in run_files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_text("x")])
def test_resume_restores_the_partition(run: Path, damage: Callable[[Path], object]) -> None:
    before = (run / "partition.npz").read_bytes()
    damage(run / "partition.npz")
    history = fl.resume(run, rounds=2)
    assert (run / "partition.npz").read_bytes() == before
    assert int(history.partition.sizes.sum()) == 1437
    assert "consistent" in fl.replay(run)


@pytest.mark.parametrize(
    ("content", "names"),
    [
        ("null", ("not a JSON object",)),
        ("{}", ("it lacks reason",)),
        ('{"reason": 3}', ("reason: got 3",)),
        ("{", ("not JSON",)),
    ],
)
def test_damaged_summary_is_refused(run: Path, content: str, names: tuple[str, ...]) -> None:
    (run / "summary.json").write_text(content)
    with refuses("run", "summary.json", *names) as caught:
        _ = fl.History(run).summary
    assert "Totals" not in str(caught.value)
