"""The programs that are written from scratch give the events and the parameters of the engine."""

import runpy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

import fedraa as fl
from fedraa import Experiment, History
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_cost_model
from fedraa.rng import generator

EXAMPLES = Path(__file__).parents[2] / "examples"
PROGRAMS = ("fed_avg", "fed_raa", "fedbuff", "fedrolex")
SEED = 3
LOCAL = {"lr": 0.05, "momentum": 0.5, "batch_size": 32, "local_epochs": 2}
SMALL = {"clients": 8, "hidden": (40,), "seed": SEED, "engine": "local", "eval_every": 100, "quiet": True} | LOCAL
Array = npt.NDArray[Any]
Trained = tuple[Array, list[tuple[Any, ...]]]


def load(name: str) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / f"{name}_from_scratch.py"))


def run_engine_and_program(
    name: str, out: Path, settings: dict[str, Any], *, widths: tuple[int, ...] | None = None, **fields: Any
) -> tuple[History, Trained]:
    """Run the engine and the program on the same shards, costs and random streams.

    Args:
        name: The program.
        out: The run directory.
        settings: Arguments of the program.
        widths: Hidden units of every other client; by default costs are those of the fragments.
        fields: Fields of the experiment.
    """
    experiment = Experiment(**SMALL | fields, out=out)
    run = build_run(experiment)
    shards = [(x.reshape(len(y), -1), y) for x, y in map(run.data.client, range(8))]
    if widths is None:
        costs = make_cost_model(run).table([part.widths for part in run.submodels])
    else:
        costs = np.array([make_cost_model(run).cost((widths[n % 2],), n, 0, 0).duration for n in range(8)])
    program = load(name)
    train: Callable[..., Trained] = program["train"]
    trained = train(run.params.astype(np.float64), shards, costs, partial(generator, SEED), **settings)
    return fl.run(experiment), trained


def parameters(history: History) -> Array:
    state = torch.load(history.directory / "model.pt")
    return np.concatenate([values.numpy().ravel() for values in state.values()])


def events(history: History) -> list[tuple[Any, ...]]:
    names = ("kind", "t", "task", "client", "fragment", "version", "staleness")
    return [tuple(map(line.get, names)) for line in history.lines() if line["kind"] in ("dispatch", "commit")]


def close(got: Array, expected: Array) -> None:
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-5)


def test_fed_raa_program_equals_the_engine(tmp_path: Path) -> None:
    settings = {"updates": 60, "epochs": 2}
    history, (theta, mine) = run_engine_and_program("fed_raa", tmp_path / "run", settings, method="fed-raa", updates=60)
    assert mine == events(history)
    assert max(event[-1] for event in mine if event[0] == "commit") >= 3
    close(theta, parameters(history))


def test_fed_avg_program_equals_the_engine(tmp_path: Path) -> None:
    settings = {"rounds": 5, "cohort_size": 3, "epochs": 2}
    fields = {"method": "fedavg", "rounds": 5, "participation": "sample:3", "weights": "samples"}
    history, (theta, mine) = run_engine_and_program("fed_avg", tmp_path / "run", settings, **fields)
    lines = history.lines()
    cohorts: list[list[int]] = [[] for _ in range(5)]
    for line in lines:
        if line["kind"] == "dispatch":
            cohorts[line["version"]].append(line["client"])
    times = [line["t"] for line in lines if line["kind"] == "round"]
    assert mine == list(zip(times, cohorts, strict=True))
    close(theta, parameters(history))


def test_fedbuff_program_equals_the_engine(tmp_path: Path) -> None:
    settings = {"updates": 40, "concurrency": 4, "buffer_size": 3, "epochs": 2, "momentum": 0.5}
    fields = {"method": "fedbuff", "updates": 40, "concurrency": 4, "buffer_size": 3}
    history, (theta, mine) = run_engine_and_program("fedbuff", tmp_path / "run", settings, **fields)
    assert mine == events(history)
    assert max(event[-1] for event in mine if event[0] == "commit") >= 2
    close(theta, parameters(history))


def test_fedrolex_program_equals_the_engine(tmp_path: Path) -> None:
    settings = {"rounds": 4, "capacities": (1.0, 0.5), "epochs": 2, "momentum": 0.5}
    # The program does not have the further terms of HeteroFL's code, so the method runs without them.
    plain = {"override": {"submodel.capacities.redraw": False}, "clip": 0.0, "weight_decay": 0.0}
    fields = {"method": "fedrolex", "rounds": 4, "capacities": (1.0, 0.5), **plain}
    history, (theta, mine) = run_engine_and_program("fedrolex", tmp_path / "run", settings, widths=(40, 20), **fields)
    rounds = [line for line in history.lines() if line["kind"] == "round"]
    assert mine == [(line["t"], line["coverage_min"], line["coverage_max"]) for line in rounds]
    assert [event[1:] for event in mine] == [(4, 8)] * 4
    close(theta, parameters(history))


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_from_scratch_is_short_and_learns(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = EXAMPLES / f"{name}_from_scratch.py"
    assert len(path.read_text().splitlines()) <= 110
    runpy.run_path(str(path), run_name="__main__")
    accuracy = float(capsys.readouterr().out.rpartition("accuracy ")[2].rstrip("%\n"))
    assert accuracy > 80
