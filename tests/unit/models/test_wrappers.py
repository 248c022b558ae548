"""Wrapped modules: their training, their cuts and their exported names."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import Tensor, nn

import fedraa as fl
from fedraa.models.wrappers import unwrap_module
from fedraa.submodels.parametrized import pack_module, unpack_module
from fedraa.submodels.whole import take_whole

X = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)
BATCH = torch.from_numpy(X[:4])


def compiled(module: nn.Module) -> nn.Module:
    result: nn.Module = torch.compile(module, backend="eager")
    return result


def layers() -> nn.Sequential:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 2))


def dataset() -> fl.Dataset:
    return fl.Dataset("mine", X[:40], Y[:40], X[40:], Y[40:], 2)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.a(x)
        return y if y.sum() > 0 else -y


def test_unwrap_module_removes_any_number_of_wrappers() -> None:
    module = layers()
    assert unwrap_module(module) is module
    assert unwrap_module(compiled(nn.DataParallel(compiled(module)))) is module


def test_unwrapped_submodules_keep_names_tensors_and_attributes() -> None:
    wrapped = nn.Sequential(compiled(nn.Linear(5, 6)), nn.DataParallel(nn.Linear(6, 2)))
    plain = unwrap_module(wrapped)
    assert plain.state_dict().keys() == wrapped.state_dict().keys()
    assert all(p is q for p, q in zip(plain.parameters(), wrapped.parameters(), strict=True))
    assert plain[0].out_features == 6
    assert not hasattr(plain[0], "absent")
    assert torch.equal(plain(BATCH), wrapped(BATCH))
    assert torch.equal(pickle.loads(pickle.dumps(plain))(BATCH), wrapped(BATCH))


@pytest.mark.parametrize("wrap", [compiled, nn.DataParallel])
def test_a_wrapped_module_is_cut_and_exported_as_the_plain_one(wrap: Any, tmp_path: Path) -> None:
    options: dict[str, Any] = {"dataset": dataset(), "clients": 2, "fragments": 2, "updates": 4, "engine": "local"}
    module = layers()
    wrapped = fl.run(model=wrap(module), out=tmp_path / "a", **options)
    plain = fl.run(model=module, out=tmp_path / "b", **options)
    assert wrapped.summary["model_sha256"] == plain.summary["model_sha256"]
    module.load_state_dict(torch.load(wrapped.directory / "model.pt"), strict=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_survives_pickling_and_gets_gradients() -> None:
    inside = nn.Sequential(torch.jit.script(nn.Linear(5, 6)), nn.Linear(6, 2))
    for module in (torch.jit.script(layers()), inside):
        traced = pickle.loads(pickle.dumps(take_whole(module, BATCH)))
        assert torch.equal(traced.module(BATCH), module(BATCH))
        cut = traced.make_skeleton(())
        cut(BATCH).sum().backward()
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in list(cut.parameters())[-1:])
        assert torch.equal(unpack_module(pack_module(module))(BATCH), module(BATCH))


def test_batch_norm_in_torchscript_is_estimated_as_in_the_plain_module(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 2))
    options: dict[str, Any] = {"method": "fedavg", "rounds": 2, "clients": 2, "engine": "local", "dataset": dataset()}
    plain = fl.run(model=module, out=tmp_path / "a", **options)
    script = fl.run(model=torch.jit.script(module), out=tmp_path / "b", **options)
    assert script.evals["loss"].tolist() == pytest.approx(plain.evals["loss"].tolist(), abs=1e-5)
    module.load_state_dict(torch.load(script.directory / "model.pt"), strict=True)


def test_whole_and_traced_modules_cost_the_same(tmp_path: Path) -> None:
    options: dict[str, Any] = {"model": layers(), "dataset": dataset(), "clients": 2, "engine": "local"}
    whole = fl.run(method="fedavg", rounds=1, out=tmp_path / "a", **options)
    traced = fl.run(method="heterofl", capacities=1.0, rounds=1, out=tmp_path / "b", **options)
    shapes = [history.config["resolved"]["shapes"][-1] for history in (whole, traced)]
    assert [shape.pop("widths") for shape in shapes] == [[], [6]]
    assert shapes[0] == shapes[1]
    assert shapes[0]["flops"] == 2 * (5 * 6 + 6 * 2) * 3 - 2 * 5 * 6


@pytest.mark.parametrize("method", ["fed-raa", "heterofl", "subdismo", "oap", "prunefl", "ist", "fedgmr"])
def test_uncuttable_module_names_methods_that_accept_it(method: str, tmp_path: Path) -> None:
    common: dict[str, Any] = {"clients": 2, "engine": "local", "dataset": dataset(), "time": 1.0}
    with refuses("model", "Branching", "fedavg", "`fedraa methods`") as raised:
        fl.run(method=method, model=Branching(), out=tmp_path / "a", **common)
    assert "\n" not in str(raised.value)
    assert ("set fragments to 1" in str(raised.value)) == (method == "fed-raa")
    with refuses("model", "Linear", "fedavg"):
        fl.run(method=method, model=nn.Linear(5, 2), out=tmp_path / "b", **common)


def test_uncuttable_module_runs_with_every_whole_model_method(tmp_path: Path) -> None:
    for method in ("fedasync", "fedbuff", "scaffold", "fedsam", "mimelite"):
        limit = {"updates": 10} if fl.method(method).asynchronous else {"rounds": 1}
        history = fl.run(
            method=method,
            model=Branching(),
            dataset=dataset(),
            clients=2,
            local_steps=1,
            engine="local",
            out=tmp_path / method,
            **limit,
        )
        assert history.summary["faults"] == 0
    history = fl.run(
        model=Branching(), dataset=dataset(), clients=2, fragments=1, updates=4, engine="local", out=tmp_path / "one"
    )
    assert history.summary["steps"] == 4


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("module", "field", "shown"),
    [
        (nn.Linear(4, 2), "model: Linear", "[5]"),
        (nn.Bilinear(5, 5, 2), "model: Bilinear", "tuple or a dict"),
        (nn.Linear(5, 3), "model: Linear", "[2, 3]"),
        (nn.Linear(5, 1), "model: Linear", "[2, 1]"),
        (nn.Linear(5, 2).double(), "model", "float64"),
        (nn.LSTM(5, 3), "model: LSTM", "[2, 3]"),
    ],
)
def test_a_module_that_does_not_fit_is_refused(module: nn.Module, field: str, shown: str, tmp_path: Path) -> None:
    with refuses(field, shown) as raised:
        fl.run(method="fedavg", model=module, dataset=dataset(), clients=2, engine="local", out=tmp_path / "x")
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "x").exists()
