"""Bad clients on Ray: the same log and bits as in one process, with any number of workers and with shards."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from execution import run_warm
from same_run import same
from torch import Tensor

import fedraa as fl
from fedraa.client.gradient_transforms import GradientTransform, StepContext
from fedraa.engine.build import build_run
from fedraa.testing.samples import make_vectors

# Workers cannot import a test module, so Ray sends its classes by value.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

# A row of the training data with values that the model cannot process.
ROW = 17


class Wary(GradientTransform):
    """A gradient transform that fails for a gradient that is not finite."""

    def apply(self, grad: Tensor, context: StepContext) -> None:
        if not grad.isfinite().all():
            raise ArithmeticError("a gradient is not finite\nand more")


def run(out: Path, warm_workers: tuple[Any, ...] = (), **flags: Any) -> fl.History:
    """Return a run in which only one client has a row that leads to values that are not finite."""
    data = make_vectors()
    rows = data.x_train.copy()
    rows[ROW] = np.where(np.arange(rows.shape[1]) % 2, 3e38, -3e38)
    settings = {
        "clients": 4,
        "hidden": (20,),
        "local_epochs": 1,
        "batch_size": 50,
        "quiet": True,
        "checkpoint_every": 6,
        "standardise": False,
    }
    data = replace(data, x_train=rows)
    settings |= {"method": "fed-raa", "updates": 24} | flags
    if warm_workers:
        history = run_warm(warm_workers, out, dataset=data, **settings)
    else:
        history = fl.run(engine="local", dataset=data, out=out, **settings)
    experiment = fl.Experiment(**settings)
    (bad,) = (n for n in range(4) if (np.abs(build_run(experiment, dataset=data).data.client(n)[0]) > 1e38).any())
    assert [entry["client"] for entry in history.summary["quarantined"]] == [bad]  # type: ignore[attr-defined]
    assert "consistent" in fl.replay(out)
    return history


@pytest.mark.parametrize(
    "flags",
    [
        {"max_update_norm": "auto", "server_shards": 2},
        {"method": "fedavg", "rounds": 4, "updates": None, "gradient_transforms": (Wary(),)},
    ],
    ids=["on shards", "custom gradient transform"],
)
def test_ray_quarantines_the_same_client_and_gives_the_same_run_as_one_process(
    flags: dict[str, Any], warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    local = run(tmp_path / "local", **{name: value for name, value in flags.items() if name != "server_shards"})
    same(run(tmp_path / "ray", warm_workers, **flags).directory, local)
    if "gradient_transforms" in flags:
        (what,) = {line["error"] for line in local.lines() if line["kind"] == "drop"}
        assert what.startswith(
            "InputError: gradient_transforms: Wary failed with ArithmeticError: a gradient is not finite and more; "
            "correct Wary.apply ("
        )
