"""A run with a custom RoundState that sends buffers with its tasks can be replayed."""

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import fedraa as fl
from fedraa.messages import ExtraBuffers
from fedraa.server.round_state import RoundState
from fedraa.server.round_update import Mean

SMALL: dict[str, Any] = {"clients": 3, "hidden": (8,), "local_steps": 1, "rounds": 2, "quiet": True, "engine": "local"}


class SendsTwo(RoundState):
    extra_buffers: ClassVar[ExtraBuffers] = ExtraBuffers(down=2)

    def send(self, client: int, assignment: Any) -> dict[str, Any]:
        return {"a": assignment.submodel.take(self.zeros), "b": assignment.submodel.take(self.zeros)}

    def start(self, run: Any) -> None:
        self.zeros = np.zeros(run.size, np.float32)


@pytest.mark.parametrize("options", [{}, {"aggregator": "median"}])
def test_replay_of_a_custom_round_state(tmp_path: Path, options: dict[str, Any]) -> None:
    method = fl.Method(name="own", update=Mean(auxiliary=SendsTwo()))
    history = fl.run(method=method, out=tmp_path / "run", **SMALL | options)
    size = 64 * 8 + 8 + 8 * 10 + 10
    # In two rounds, each of the three clients receives the model and two buffers of float32.
    assert history.summary["bytes_down"] == 2 * 3 * 3 * 4 * size
    assert "consistent" in fl.replay(tmp_path / "run")
