"""A run with another objective than classification and several inputs is the same on both engines."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from equal_runs import lines
from execution import run_warm
from torch import Tensor, nn

import fedraa as fl

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]
# Workers cannot import a test module, so Ray sends its classes by value.
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Masked(nn.Module):
    """A model with tokens and their mask as named inputs, and the logits of the next token in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(8, 8), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(torch.relu(self.hidden(self.embed(tokens) * mask.unsqueeze(-1))))}


def test_next_token_model_with_masked_inputs_gives_the_same_run_on_ray(
    warm_workers: tuple[Any, ...], tmp_path: Path
) -> None:
    rows = (np.random.default_rng(0).integers(0, 7, (120, 1)) + np.arange(7)) % 7
    x = {"tokens": rows[:, :-1], "mask": rows[:, :-1] != 3}
    split = [{name: part[where] for name, part in x.items()} for where in (slice(90), slice(90, None))]
    dataset = fl.Dataset("count", split[0], rows[:90, 1:], split[1], rows[90:, 1:], 8)
    fields: dict[str, Any] = {"objective": "next-token", "metrics": (mistakes,), "clients": 4, "local_epochs": 1}
    fields |= {"updates": 20, "personalised": 2, "model": Masked(), "dataset": dataset}
    local = fl.run(engine="local", out=tmp_path / "local", **fields)
    ray_history = run_warm(warm_workers, tmp_path / "ray", **fields)
    assert "consistent" in fl.replay(local.directory)
    assert "consistent" in fl.replay(ray_history.directory)
    assert lines(local.directory) == lines(ray_history.directory)
    assert local.summary["model_sha256"] == ray_history.summary["model_sha256"]


def mistakes(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(-1) != labels).sum(1)
