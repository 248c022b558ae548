"""Kept buffers and personal models: equal on both engines, with any workers, and in a run that is killed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from same_run import same_on_ray

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]

FIELDS: dict[str, Any] = {"clients": 4, "hidden": (8,), "partition": "labels:3", "local_epochs": 1, "quiet": True}


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedrep", "rounds": 3, "override": {"local.algorithm.head_epochs": 2}},
        {"method": "apfl", "rounds": 3},
        {"method": "feddyn-async", "updates": 8, "buffer_size": 2},
        {"method": "fed-raa", "updates": 12, "personal_layers": ("last-layer",)},
        {"method": "fed-raa", "updates": 12, "compress": "randomk:0.2", "error_feedback": "ef"},
    ],
    ids=lambda fields: str(fields["method"]),
)
def test_kept_values_give_the_same_run_on_ray(
    fields: dict[str, Any], warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    histories = same_on_ray(warm_workers, tmp_path, **FIELDS, **fields)
    there, here = (history.evals.drop(columns="wall") for history in histories)
    np.testing.assert_array_equal(there, here)
