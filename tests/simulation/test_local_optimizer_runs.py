"""Runs with local optimizers: a killed run resumes with the kept state, and the run directory replays."""

from pathlib import Path
from typing import Any

import pytest
from equal_runs import check_resume

from fedraa import Experiment, run
from fedraa.engine.build import build_run
from fedraa.engine.memory_check import Free, Need, check_memory

SMALL: dict[str, Any] = {
    "engine": "local",
    "hidden": (8,),
    "clients": 4,
    "local_steps": 3,
    "lr": 0.01,
    "checkpoint_every": 3,
    "seed": 5,
    "quiet": True,
}


@pytest.mark.parametrize(
    "method",
    [
        {"method": "fed-raa", "updates": 20},
        {"method": "fedavg", "rounds": 5, "participation": "sample:3"},
        {"method": "heterofl-async", "updates": 20},
        {"method": "ra-fed", "rounds": 5, "lr": None, "local_optimizer": "ldog(alpha=0.01)"},
    ],
    ids=lambda method: str(method["method"]),
)
def test_killed_run_resumes_with_the_kept_state(method: dict[str, Any], tmp_path: Path) -> None:
    fields = {**SMALL, "local_optimizer": "adam(amsgrad=True)", **method}
    kept = check_resume(fields | {"local_optimizer_state": "keep"}, tmp_path, kill_at=11)
    reset = run(Experiment(**fields, out=tmp_path / "reset"))
    assert reset.summary["model_sha256"] != kept.summary["model_sha256"]
    assert reset.summary["bytes_up"] == kept.summary["bytes_up"]


def test_memory_counts_the_kept_state_of_each_client() -> None:
    def need(**fields: Any) -> Need:
        return Need.of(build_run(Experiment(**SMALL, method="fedavg", rounds=2, **fields)))

    size = build_run(Experiment(**SMALL, method="fedavg", rounds=2)).params.nbytes
    plain, kept = need(), need(local_optimizer="adam", local_optimizer_state="keep")
    # Two moments and a count of steps.
    assert kept.server - plain.server == 4 * 3 * size
    assert kept.per_client - plain.per_client == 3 * size
    spec = build_run(
        Experiment(**SMALL, method="fedavg", rounds=2, local_optimizer="adam", local_optimizer_state="keep")
    )
    with pytest.raises(ValueError, match=r"^(memory|clients): "):
        check_memory(spec, Free(kept.server + kept.worker - 1, None))
