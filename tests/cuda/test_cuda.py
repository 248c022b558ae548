"""Training on a GPU: nearly the CPU's numbers, and the same bits in every run. Without a GPU all tests are skipped."""

import warnings
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from needed_models import needed_model

import fedraa as fl
from fedraa.composition.registry import find_method, list_methods
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_worker_spec
from fedraa.messages import Task
from fedraa.models.build import MODELS
from fedraa.submodels.policies.pruning import AdaptivePruning

DEVICE = "cuda"
pytestmark = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]

CLIENTS = 4
# A GPU rounds differently. After a few steps, the models of GPU and CPU differ by at most this share of the change by
# training.
TOLERANCE = 2e-3


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Compute convolutions in float32 instead of TF32, so that they can be compared with the CPU's."""
    allowed = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = allowed


def fields(method: str, **changes: Any) -> dict[str, Any]:
    """Return the fields of a small run of a method, with these changes."""
    budget: dict[str, Any] = {"updates": 2 * CLIENTS} if find_method(method).asynchronous else {"rounds": 2}
    if isinstance(find_method(method).submodel, AdaptivePruning):
        budget["rounds"] += AdaptivePruning.initial
    if find_method(method).path("buffer_size"):
        budget["buffer_size"] = 2
    small: dict[str, Any] = {"clients": CLIENTS, "local_steps": 2, "engine": "local", "quiet": True}
    if "model" not in changes:
        small["hidden"] = (32,)
    return {"method": method, "lr": 0.05, **small, **budget, **changes, **needed_model(method)}


def train(out: Path, device: str, options: dict[str, Any], **objects: Any) -> fl.History:
    return fl.run(**options, **objects, device=device, out=out)


def params_of(history: fl.History) -> npt.NDArray[np.float32]:
    """Return the final model as one vector."""
    return np.concatenate([tensor.detach().numpy().ravel() for tensor in history.load_model().parameters()])


def digest(history: fl.History) -> str:
    return str(history.summary["model_sha256"])


@pytest.mark.parametrize("method", sorted(list_methods()))
def test_a_method_gives_nearly_the_numbers_of_a_cpu(method: str, tmp_path: Path) -> None:
    options = fields(method)
    initial = build_run(fl.Experiment(**options)).params
    on_cpu = params_of(train(tmp_path / "on a CPU", "cpu", options))
    on_gpu = params_of(train(tmp_path / "on a GPU", DEVICE, options))
    assert np.isfinite(on_gpu).all()
    # A method that makes the model larger has no initial model of the same length.
    start = initial if len(initial) == len(on_cpu) else np.zeros_like(on_cpu)
    assert np.linalg.norm(on_gpu - on_cpu) <= TOLERANCE * np.linalg.norm(on_cpu - start)


@pytest.mark.parametrize("method", sorted(list_methods()))
def test_a_method_gives_the_same_bits_in_every_run(method: str, tmp_path: Path) -> None:
    first, second = (train(tmp_path / name, DEVICE, fields(method, model="cnn")) for name in ("first", "second"))
    assert digest(first) == digest(second)


def images(name: str) -> dict[str, Any]:
    """Return random images and labels as training and test data."""
    rng = np.random.default_rng(0)
    side = 16 if "resnet" in name or name == "vit" else 8
    x = rng.standard_normal((96, 3, side, side)).astype(np.float32)
    y = rng.integers(0, 10, 96)
    return {"x_train": x[:64], "y_train": y[:64], "x_test": x[64:], "y_test": y[64:]}


def tokens() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    x, y = rng.integers(1, 500, (96, 12)), rng.integers(0, 4, 96)
    return {"x_train": x[:64], "y_train": y[:64], "x_test": x[64:], "y_test": y[64:]}


@pytest.mark.parametrize(
    ("model", "method"),
    # Fragments of the ResNet with a scaler diverge on random images.
    [pair for pair in product(MODELS, ("fed-raa", "fedavg", "fedsam")) if pair != ("resnet18-scaler", "fed-raa")],
)
def test_a_model_gives_the_same_bits_in_every_run_and_nearly_the_numbers_of_a_cpu(
    model: str, method: str, tmp_path: Path
) -> None:
    arrays = tokens() if model == "fasttext" else images(model)
    data = fl.Dataset("random", *arrays.values(), classes=int(arrays["y_train"].max()) + 1)
    options = fields(method, model=model, batch_size=8, lr=0.01)
    with warnings.catch_warnings():
        # An operation without an algorithm that gives the same bits makes PyTorch warn.
        warnings.simplefilter("error", UserWarning)
        first, second = (train(tmp_path / name, DEVICE, options, dataset=data) for name in ("first", "second"))
    assert digest(first) == digest(second)
    on_cpu = params_of(train(tmp_path / "cpu", "cpu", options, dataset=data))
    assert np.linalg.norm(params_of(first) - on_cpu) <= 0.02 * np.linalg.norm(on_cpu)


@pytest.mark.parametrize("keeps_rest", [False, True])
@pytest.mark.parametrize("method", ["subdismo", "ra-fed", "prunefl", "fedsam"])
def test_coordinates_outside_of_a_mask_are_zero_or_keep_their_bits(method: str, keeps_rest: bool) -> None:
    spec = build_run(fl.Experiment(**fields(method)))
    mask = np.random.default_rng(1).random(len(spec.params)) < 0.5
    params = spec.params if keeps_rest else spec.params * mask
    widths = spec.traced.widths(spec.traced.full())
    task = Task(0, 0, 0, 0, 0, 0, widths, params, 0.1, 1.0, mask=mask, keeps_rest=keeps_rest)
    on_gpu, on_cpu = (
        make_worker_spec(spec).trainer(device).train(task, *spec.data.client(0)).params for device in (DEVICE, "cpu")
    )
    np.testing.assert_array_equal(on_gpu[~mask], params[~mask])
    assert (on_gpu[mask] != params[mask]).any()
    np.testing.assert_allclose(on_gpu, on_cpu, atol=1e-5)


@pytest.mark.parametrize("method", ["fedavg", "fed-raa", "scaffold"])
def test_vmap_batch_trains_nearly_as_single_tasks_and_the_same_in_every_run(method: str, tmp_path: Path) -> None:
    alone = params_of(train(tmp_path / "alone", DEVICE, fields(method)))
    first, second = (
        train(tmp_path / name, DEVICE, fields(method, vmap_batch=3)) for name in ("first stack", "second stack")
    )
    assert digest(first) == digest(second)
    assert np.linalg.norm(params_of(first) - alone) <= 1e-3 * np.linalg.norm(alone)


def test_dropout_gives_the_same_bits_in_every_run_and_after_a_resume(tmp_path: Path) -> None:
    options = fields("fed-raa", dropout=0.5, updates=12, checkpoint_every=4)
    whole = train(tmp_path / "whole", DEVICE, options)
    assert digest(train(tmp_path / "again", DEVICE, options)) == digest(whole)
    assert digest(train(tmp_path / "without", DEVICE, options | {"dropout": 0.0})) != digest(whole)
    short = train(tmp_path / "resumed", DEVICE, options | {"updates": 6})
    assert digest(fl.resume(short.directory, updates=12)) == digest(whole)


def test_bf16_trains_nearly_as_float32(tmp_path: Path) -> None:
    options = fields("fedavg")
    exact = params_of(train(tmp_path / "exact", DEVICE, options))
    rounded = train(tmp_path / "bf16", DEVICE, options | {"bf16": True})
    difference = np.linalg.norm(params_of(rounded) - exact)
    assert 0 < difference <= 0.05 * np.linalg.norm(exact)


@pytest.mark.cluster
@pytest.mark.parametrize("method", ["fed-raa", "fedavg"])
def test_workers_that_share_a_gpu_give_the_bits_of_one_process(method: str, tmp_path: Path) -> None:
    options = fields(method)
    local = train(tmp_path / "local", DEVICE, options)
    on_ray = train(tmp_path / "ray", DEVICE, options | {"engine": "ray", "workers": 2})
    assert digest(on_ray) == digest(local)


def test_a_run_frees_its_gpu_memory(tmp_path: Path) -> None:
    train(tmp_path / "warm-up", DEVICE, fields("fedavg"))
    before = torch.cuda.memory_allocated()
    train(tmp_path / "run", DEVICE, fields("fedavg", hidden=(2000,)))
    assert torch.cuda.memory_allocated() <= before + 2**20


def test_a_run_restores_the_algorithms_of_the_process(tmp_path: Path) -> None:
    before = torch.get_deterministic_debug_mode()
    train(tmp_path / "run", DEVICE, fields("fedavg"))
    assert torch.get_deterministic_debug_mode() == before


def test_run_that_does_not_fit_on_the_gpu_raises_run_failed(tmp_path: Path) -> None:
    """The run ends instead of dropping the clients whose tasks do not fit."""
    torch.cuda.set_per_process_memory_fraction(0.001)
    try:
        with pytest.raises(fl.RunFailed, match="memory"):
            train(tmp_path / "run", DEVICE, fields("fedavg", hidden=(200_000,)))
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
        torch.cuda.empty_cache()
