"""The time, FLOPs and bytes of every method, as multiples that follow from its algorithm, on 44 parameters."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import CLASSES, CLIENTS, EPOCHS, FEATURES, HIDDEN, SAMPLES, Stepped, spec

from fedraa.engine.factories import make_cost_model

# Size of the model in bytes.
D = 4 * 44
# Bytes of a bitmap of 44 coordinates.
BITMAP = 6
STEM = 4 * HIDDEN * (FEATURES + 1)
# One unit of work is this number of epochs of the full model on an average shard.
REFERENCE = 5
COMPUTE, DOWNLINK, UPLINK, LATENCY = 2.0, 4.0, 0.5, 0.25
# Two layers have a forward pass and two gradients, except the gradient by the input: 2 FLOPs per weight and pass.
FLOPS = 2 * HIDDEN * (3 * CLASSES + 2 * FEATURES)

# A hidden unit costs 4 * 3 FLOPs at the device and 6 * 4 at the server, which is ten times as fast.
SPLIT = 1 / 3 + 2 / 3 / 10
# The cost of a task on n samples with `trained` trained coordinates: the work as a multiple of the full model's work,
# bytes down, and bytes up. The work of a submodel is its share of the parameters.
TaskCost = Callable[[int, int], tuple[float, float, float]]

TASK_COSTS: dict[str, tuple[str, dict[str, Any], TaskCost]] = {
    "fedavg": ("fedavg", {}, lambda n, trained: (1, D, D)),
    "fedprox": ("fedprox", {}, lambda n, trained: (1, D, D)),
    "fedadam": ("fedadam", {}, lambda n, trained: (1, D, D)),
    "fedasync": ("fedasync", {}, lambda n, trained: (1, D, D)),
    "fedbuff": ("fedbuff", {}, lambda n, trained: (1, D, D)),
    "fedsam": ("fedsam", {}, lambda n, trained: (2, D, D)),
    "mofedsam": ("mofedsam", {}, lambda n, trained: (2, 2 * D, D)),
    "fedcm": ("fedcm", {}, lambda n, trained: (1, 2 * D, D)),
    "scaffold": ("scaffold", {}, lambda n, trained: (1, 2 * D, 2 * D)),
    "mimelite": ("mimelite", {}, lambda n, trained: (1 + 1 / EPOCHS, 2 * D, 2 * D)),
    "fedrobust": ("fedrobust", {}, lambda n, trained: (2, D, D)),
    # h and its gradient are sent for every sample of every pass. SAM has two passes per step.
    "splitfed": (
        "splitfed",
        {},
        lambda n, trained: (SPLIT, STEM + 4 * HIDDEN * EPOCHS * n, STEM + 4 * HIDDEN * EPOCHS * n),
    ),
    "splitfed sam": (
        "splitfed",
        {"override": {"local.sam_rho": 0.1}},
        lambda n, trained: (2 * SPLIT, STEM + 8 * HIDDEN * EPOCHS * n, STEM + 8 * HIDDEN * EPOCHS * n),
    ),
    # Two of five hidden neurons have (3 + 1 + 4) * 2 + 4 = 20 parameters.
    "heterofl": ("heterofl", {"capacities": (0.4,)}, lambda n, trained: (20 / 44, 80, 80)),
    "fedrolex": ("fedrolex", {"capacities": (0.4,)}, lambda n, trained: (20 / 44, 80, 80)),
    # With masks a task costs the full computation. In RAM-Fed and SubDisMO the client applies the mask, and in the
    # other papers the server applies it.
    "ra-fed": ("ra-fed", {}, lambda n, trained: (1, D, 4 * trained + BITMAP)),
    # With capacities the client receives, computes and sends only its regions.
    "ra-fed by capacities": (
        "ra-fed",
        {"capacities": (0.25,)},
        lambda n, trained: (trained / 44, 4 * trained + BITMAP, 4 * trained + BITMAP),
    ),
    "subdismo": ("subdismo", {}, lambda n, trained: (2, D, 4 * trained + BITMAP)),
    "oap": ("oap", {"capacities": (0.5,)}, lambda n, trained: (1, 4 * trained + BITMAP, 4 * trained + BITMAP)),
    "bernoulli": ("bernoulli", {}, lambda n, trained: (1, 4 * trained + BITMAP, 4 * trained + BITMAP)),
    "prunefl": (
        "prunefl",
        {"submodel": "adaptive-pruning(initial=0)"},
        lambda n, trained: (1, 4 * trained + BITMAP, 4 * trained + BITMAP),
    ),
    # The second round adjusts the mask: clients send the squared gradients of all coordinates.
    "prunefl adjusts": (
        "prunefl",
        {"override": {"submodel.reprune_every": 2}, "submodel": "adaptive-pruning(initial=0)"},
        lambda n, trained: (1, 4 * trained + BITMAP, 4 * trained + BITMAP + D),
    ),
    "prunefl begins": (
        "prunefl",
        {},
        lambda n, trained: (1, 4 * trained + BITMAP, 4 * trained + BITMAP + D),
    ),
    # Only the control variates of the trained coordinates are sent.
    "oap+scaffold": (
        "oap+scaffold",
        {"capacities": (0.5,)},
        lambda n, trained: (1, 8 * trained + BITMAP, 8 * trained + BITMAP),
    ),
    "ra-fed+scaffold": ("ra-fed+scaffold", {}, lambda n, trained: (1, 2 * D, 8 * trained + BITMAP)),
    "heterofl+fedcm": ("heterofl+fedcm", {"capacities": (0.4,)}, lambda n, trained: (20 / 44, 160, 80)),
    # The message has eleven numbers and a bitmap of 44 bits, which is shorter than eleven indices of 6 bits.
    "topk": ("fedavg", {"compress": "topk:0.25"}, lambda n, trained: (1, D, 4 * 11 + 6)),
    "sign": ("signsgd", {}, lambda n, trained: (1, D, 6)),
    "8bit": ("fedavg", {"compress": "8bit"}, lambda n, trained: (1, D, 44 + 8)),
    "8bit of a mask": (
        "oap",
        {"compress": "8bit", "capacities": (0.5,)},
        lambda n, trained: (1, 4 * trained + BITMAP, trained + 8 + BITMAP),
    ),
}


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a fleet of three equal devices with a download bandwidth, an upload bandwidth and a latency."""
    path = tmp_path_factory.mktemp("fleet") / "fleet.csv"
    row = f"{COMPUTE},{DOWNLINK},{UPLINK},{LATENCY}\n"
    path.write_text("compute,downlink,uplink,latency\n" + row * CLIENTS)
    return path


@pytest.mark.parametrize("name", TASK_COSTS)
def test_task_cost_and_traffic_follow_from_the_algorithm(name: str, fleet: Path) -> None:
    """Check the second round, or the first tasks of an asynchronous method. The average shard has 60 / 3 samples."""
    method, flags, expected_cost = TASK_COSTS[name]
    run = spec(method, compute=str(fleet), **flags)
    stepped = Stepped(run)
    if not run.method.asynchronous:
        stepped.round()
    stepped.records.lines.clear()
    tasks = stepped.round()
    dispatched = {line["task"]: line for line in stepped.records.of("dispatch")}
    committed = {line["task"]: line for line in stepped.records.of("commit")}
    for task in tasks:
        n = int(run.data.sizes[task.client])
        covered = len(task.params) if task.mask is None else int(task.mask.sum())
        assert task.mask is None or 0 < covered < 44
        work, down, up = expected_cost(n, covered)
        assert dispatched[task.id]["bytes_down"] == down
        assert committed[task.id]["bytes_up"] == task.bytes_up == up
        unit = EPOCHS * n / (REFERENCE * SAMPLES / CLIENTS)
        time = LATENCY + down / D / DOWNLINK + work * unit / COMPUTE + up / D / UPLINK
        assert dispatched[task.id]["cost"] == task.cost == pytest.approx(time, rel=1e-9)


@pytest.mark.parametrize("method", ["fedavg", "splitfed", "scaffold", "fedcm", "mimelite", "padamfed"])
def test_expected_duration_includes_activations_and_extra_buffers(fleet: Path, method: str) -> None:
    run = spec(method, compute=str(fleet))
    stepped = Stepped(run)
    tasks = stepped.round()
    durations = make_cost_model(run).expected_durations(())
    assert [durations[task.client] for task in tasks] == pytest.approx([task.cost for task in tasks])


@pytest.mark.parametrize(
    ("method", "flags", "multiple"),
    [
        ("fedavg", {}, 1),
        ("fedsam", {}, 2),
        ("mimelite", {}, 1 + 1 / EPOCHS),
        ("fedrobust", {}, 2),
        ("oap", {"capacities": (0.5,)}, 1),
        # The model has one hidden layer, so each matrix shrinks in one dimension.
        ("heterofl", {"capacities": (0.4,)}, 0.4),
        # The factors count the forward pass and the gradient by the weights.
        ("splitfed", {}, 4 * FEATURES / (2 * (3 * CLASSES + 2 * FEATURES))),
    ],
)
def test_flops_are_the_multiple_of_the_algorithm(method: str, flags: dict[str, Any], multiple: float) -> None:
    stepped = Stepped(spec(method, **flags))
    stepped.round()
    for line in stepped.records.of("commit"):
        assert line["flops"] == pytest.approx(multiple * FLOPS * EPOCHS * line["samples"])


def test_traffic_of_a_split_model_counts_the_samples_of_its_steps() -> None:
    """Seven steps over 20 samples in minibatches of six have 6, 6, 6, 2, 6, 6 and 6 samples.

    Traffic counts these samples.
    """
    run = spec("splitfed", partition="iid", local_steps=7, local_epochs=None, override={"local.sam_rho": 0.1})
    assert run.data.sizes.tolist() == [20, 20, 20]
    stepped = Stepped(run)
    tasks = stepped.round()
    channel = stepped.trainer._model(()).module.channel
    assert channel.up == channel.down == CLIENTS * 2 * 4 * HIDDEN * 38
    assert sum(task.bytes_up - STEM for task in tasks) == channel.up
    assert sum(line["bytes_down"] - STEM for line in stepped.records.of("dispatch")) == channel.down


def test_traffic_of_a_split_model_counts_full_batch_gradients() -> None:
    stepped = Stepped(spec("splitfed+mimelite"))
    tasks = stepped.round()
    channel = stepped.trainer._model(()).module.channel
    assert channel.up == 4 * HIDDEN * (EPOCHS + 1) * SAMPLES
    assert sum(task.bytes_up - 2 * STEM for task in tasks) == channel.up
    assert np.isfinite(stepped.server.params).all()
