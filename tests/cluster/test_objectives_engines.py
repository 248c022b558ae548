"""A run with another objective than classification and several inputs is the same on both engines."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from torch import Tensor, nn

import fedraa as fl

pytestmark = [pytest.mark.cluster, pytest.mark.usefixtures("cluster")]
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import a test


class Masked(nn.Module):
    """A model with tokens and their mask as named inputs, and the logits of the next token in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.hidden, self.head = nn.Embedding(8, 8), nn.Linear(8, 12), nn.Linear(12, 8)

    def forward(self, tokens: Tensor, mask: Tensor) -> dict[str, Tensor]:
        return {"logits": self.head(torch.relu(self.hidden(self.embed(tokens) * mask.unsqueeze(-1))))}


def events(directory: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines()]
    return [{key: value for key, value in line.items() if key != "wall"} for line in lines]


def test_a_next_token_of_masked_inputs_is_the_same_run_on_ray(tmp_path: Path) -> None:
    rows = (np.random.default_rng(0).integers(0, 7, (120, 1)) + np.arange(7)) % 7
    x = {"tokens": rows[:, :-1], "mask": rows[:, :-1] != 3}
    split = [{name: part[where] for name, part in x.items()} for where in (slice(90), slice(90, None))]
    dataset = fl.Dataset("count", split[0], rows[:90, 1:], split[1], rows[90:, 1:], 8)
    found = {}
    for engine in ("local", "ray"):
        torch.manual_seed(0)
        experiment = fl.Experiment(
            objective="next-token",
            metrics=(mistakes,),
            clients=4,
            local_epochs=1,
            updates=20,
            engine=engine,
            personalised=2,
            workers=2 if engine == "ray" else None,
            out=tmp_path / engine,
        )
        history = fl.run(experiment, model=Masked(), dataset=dataset)
        assert "consistent" in fl.replay(history.directory)
        found[engine] = (events(history.directory), history.summary["model_sha256"])
    assert found["local"] == found["ray"]


def mistakes(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(-1) != labels).sum(1)
