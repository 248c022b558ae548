"""Sources and transforms: the same run in this process, on one worker and on two."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from equal_runs import lines
from execution import run_warm

import fedraa as fl

pytestmark = pytest.mark.cluster

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((90, 3, 8, 8)).astype(np.float32), np.arange(90) % 3
TEST = (X[:20], Y[:20])


def custom_data() -> tuple[Any, Any]:
    """Return a custom dataset and a function that makes the samples of a client. Ray sends both by value."""

    class Pairs(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return len(Y)

        def __getitem__(self, row: int) -> Any:
            return torch.from_numpy(X[row]), int(Y[row])

    def made(client: int) -> Any:
        rows = np.random.default_rng(client).integers(0, 90, 4 + client)
        return X[rows], Y[rows]

    return Pairs(), made


def files(folder: Path) -> str:
    for name, array in {"x_train": X, "y_train": Y, "x_test": X[:20], "y_test": Y[:20]}.items():
        np.save(folder / f"{name}.npy", array)
    return f"npy:{folder}"


@pytest.mark.parametrize(
    "case", ["pairs", *(pytest.param(case, marks=pytest.mark.slow) for case in ("files", "made", "numbers", "stacks"))]
)
def test_every_engine_trains_on_the_same_samples(case: str, warm_workers: tuple[Any, ...], tmp_path: Path) -> None:
    owners = (np.arange(90) % 4).tolist()
    pairs, made = custom_data()

    def numbers(client: int) -> Any:
        x, _ = made(client)
        return x, x.mean((1, 2, 3))

    cases: dict[str, dict[str, Any]] = {
        "pairs": {"dataset": fl.FederatedDataset("pairs", pairs, TEST, clients=owners), "transforms": ("crop,flip",)},
        "made": {
            "dataset": fl.FederatedDataset("made", made, TEST, classes=3, sizes=[4, 5, 6, 7]),
            "transforms": ("v2.RandomErasing(p=0.5)", "normalize"),
        },
        "numbers": {
            "dataset": fl.FederatedDataset("numbers", numbers, (X[:20], X[:20].mean((1, 2, 3))), sizes=[4, 5, 6, 7]),
            "objective": "regression",
            "personalised": 2,
        },
        "files": {"dataset": files(tmp_path), "partition": "noise", "clients": 4},
        "stacks": {
            "dataset": fl.Dataset("arrays", X, Y, *TEST, classes=3),
            "transforms": ("crop(padding=1)", "flip"),
            "clients": 4,
            "vmap_batch": 2,
        },
    }
    fields: dict[str, Any] = {"method": "fed-raa", "updates": 9, "fragments": 2, "quiet": True, **cases[case]}
    histories = [
        fl.run(engine="local", out=tmp_path / "local", **fields),
        run_warm(warm_workers[:1], tmp_path / "one", **fields),
        run_warm(warm_workers, tmp_path / "two", **fields),
    ]
    digests = {history.summary["model_sha256"] for history in histories}
    logs = [lines(history.directory) for history in histories]
    assert len(digests) == 1
    assert logs[0] == logs[1] == logs[2]
    assert not any(line["kind"] == "fault" for line in logs[0])
