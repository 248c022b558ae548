"""Methods that train the whole model take any module that PyTorch trains, and train it as plain PyTorch does."""

from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations, rnn
from torch.utils.checkpoint import checkpoint

import fedraa as fl
from fedraa.engine.build import build_run
from fedraa.rng import generator
from fedraa.submodels import flat, whole

CLASSES, WIDTH, SAMPLES, TEST, STEPS, BATCH, LR = 3, 6, 40, 16, 5, 8, 0.1

random = np.random.default_rng(0)
X = random.normal(size=(SAMPLES + TEST, WIDTH)).astype(np.float32)
Y = random.integers(0, CLASSES, SAMPLES + TEST)
IDS = random.integers(1, 20, size=(SAMPLES + TEST, 7))
LENGTHS = random.integers(1, 8, size=SAMPLES + TEST)
MASK = (np.arange(7) < LENGTHS[:, None]).astype(np.int64)
IMAGES = random.normal(size=(SAMPLES + TEST, 3, 8, 8)).astype(np.float32)

Named = namedtuple("Named", ["hidden", "logits"])


@dataclass
class Output:
    features: Tensor
    out: Tensor


class Net(nn.Module):
    """Two layers, and a function of their outputs."""

    def __init__(self, forward: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.a, self.b, self.call = nn.Linear(WIDTH, 8), nn.Linear(8, CLASSES), forward

    def forward(self, x: Any) -> Any:
        return self.call(self, x)


class Double(torch.autograd.Function):
    """A function that doubles its input, with a gradient that is twice the right one on purpose."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 4 * gradients[0]


class Packed(nn.Module):
    """A recurrent network over sequences of different lengths."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.table, self.body = nn.Embedding(20, 5), kind(5, 6, batch_first=True)  # type: ignore[arg-type]
        self.head = nn.Linear(6, CLASSES)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
        packed = rnn.pack_padded_sequence(self.table(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        _, state = self.body(packed)
        result: Tensor = self.head((state[0] if isinstance(state, tuple) else state)[-1])
        return result


class Masked(nn.Module):
    """A module that omits the mask if it is all ones, as the package transformers does."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        mask = None if bool(attention_mask.all()) else attention_mask == 0
        hidden = self.layer(self.table(ids), src_key_padding_mask=mask)
        return {"hidden": hidden, "logits": self.head(hidden[:, 0])}


class Segments(nn.Module):
    """Convolutions whose result is a dict, as in torchvision's segmentation models."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        features = F.relu(self.body(x)).mean((2, 3))
        return {"out": self.head(features), "aux": features}


class Shared(nn.Module):
    """A module that calls one layer twice, in two reentrant checkpoints. One weight has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.b.weight = self.a.weight

    def forward(self, x: Tensor) -> Tensor:
        x = x.requires_grad_() if self.training else x
        x = checkpoint(lambda x: self.a(x).tanh(), x, use_reentrant=True)
        x = checkpoint(lambda x: self.b(x).tanh() + self.a(x), x, use_reentrant=True)
        result: Tensor = self.head(x)
        return result


class Detached(nn.Module):
    """A module that reads the data of a weight, without autograd, after the gradient of the weight is known."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).tanh()
        x = F.linear(x, self.b.weight.detach()) + self.b(x.detach())
        result: Tensor = self.head(x)
        return result


def branching(m: Net, x: Tensor) -> Any:
    y = m.a(x)
    return m.b(y.relu() if y.sum() > 0 else y.tanh())


def numpy(m: Net, x: Tensor) -> Any:
    scale = float(np.abs(x.detach().numpy()).mean()) + x.max().item()
    return m.b(torch.relu(m.a(x)) * scale)


def in_place(m: Net, x: Tensor) -> Any:
    x.sub_(0.5)
    return m.b(m.a(x).mul_(0.5).relu_())


def looping(m: Net, x: Tensor) -> Any:
    y = m.a(x)
    while y.abs().max() > 1:
        y = y / 2
    return m.b(y)


def hooked() -> nn.Module:
    module = Net(lambda m, x: m.b(m.a(x).relu()))
    module.a.register_forward_hook(lambda layer, inputs, out: 2 * out)
    return module


def parametrized() -> nn.Module:
    module = Net(lambda m, x: m.b(m.a(x).relu()))
    parametrizations.weight_norm(module.a)
    return module


def plain(*functions: Callable[..., Any]) -> nn.Module:
    layers = nn.Sequential(nn.Linear(WIDTH, 8), nn.ReLU(), nn.Linear(8, CLASSES))
    for function in functions:
        layers = function(layers)
    return layers


def compiled(module: nn.Module) -> nn.Module:
    result: nn.Module = torch.compile(module, backend="eager")
    return result


MODULES: dict[str, tuple[Callable[[], nn.Module], Any]] = {
    "branch": (lambda: Net(branching), X),
    "numpy": (lambda: Net(numpy), X),
    "in place": (lambda: Net(in_place), X),
    "loop": (lambda: Net(looping), X),
    "hook": (hooked, X),
    "parametrized": (parametrized, X),
    "custom function": (lambda: Net(lambda m, x: m.b(Double.apply(m.a(x)))), X),
    "checkpoint": (lambda: Net(lambda m, x: m.b(checkpoint(m.a, x, use_reentrant=False))), X),
    "shared reentrant": (Shared, X),
    "detached": (Detached, X),
    "tuple": (lambda: Net(lambda m, x: (m.b(m.a(x)), m.a(x))), X),
    "namedtuple": (lambda: Net(lambda m, x: Named(m.a(x), m.b(m.a(x)))), X),
    "dataclass": (lambda: Net(lambda m, x: Output(m.a(x), m.b(m.a(x)))), X),
    "namespace": (lambda: Net(lambda m, x: SimpleNamespace(logits=m.b(m.a(x)))), X),
    "sparse": (lambda: Net(lambda m, x: m.b(torch.sparse.mm(x.to_sparse(), m.a.weight.T))), X),
    "script in a wrapper": (lambda: nn.Sequential(nn.DataParallel(torch.jit.script(nn.Linear(WIDTH, CLASSES)))), X),
    "one entry": (lambda: Net(lambda m, x: {"scores": m.b(m.a(x)), "loss": None}), X),
    "half": (lambda: Net(lambda m, x: m.b(m.a(x)).half()), X),
    "double": (lambda: Net(lambda m, x: m.b(m.a(x)).double()), X),
    "segmentation": (Segments, IMAGES),
    "attention mask": (Masked, {"ids": IDS * MASK, "attention_mask": MASK}),
    "packed LSTM": (lambda: Packed(nn.LSTM), (IDS, LENGTHS)),
    "packed GRU": (lambda: Packed(nn.GRU), {"ids": IDS, "lengths": LENGTHS}),
    "compiled": (lambda: plain(compiled), X),
    "parallel": (lambda: plain(nn.DataParallel, compiled), X),
    "script": (lambda: plain(torch.jit.script), X),
    "traced": (lambda: plain(lambda module: torch.jit.trace(module, torch.ones(2, WIDTH))), X),
    "script inside": (lambda: nn.Sequential(torch.jit.script(nn.Linear(WIDTH, 8)), nn.Linear(8, CLASSES)), X),
    "compiled inside": (lambda: nn.Sequential(compiled(nn.Linear(WIDTH, 8)), nn.Linear(8, CLASSES)), X),
}


# Large models are trained parameter by parameter.
LARGE = ("shared reentrant", "detached", "checkpoint", "script", "packed LSTM")


def take_rows(x: Any, rows: Any) -> Any:
    """Return rows of one input, a tuple or a dict."""
    if isinstance(x, dict):
        return {name: part[rows] for name, part in x.items()}
    return tuple(part[rows] for part in x) if isinstance(x, tuple) else x[rows]


def main_output(module: nn.Module, x: Any) -> Tensor:
    """Return the main output of a module, as a script in plain PyTorch does."""
    if isinstance(x, dict):
        out = module(**{name: torch.tensor(part) for name, part in x.items()})
    else:
        out = module(*(torch.tensor(part) for part in (x if isinstance(x, tuple) else (x,))))
    for name in ("logits", "out", "scores"):
        if isinstance(out, dict) and name in out:
            out = out[name]
        out = getattr(out, name, out)
    result: Tensor = out[0] if isinstance(out, tuple) else out
    return result if result.dtype == torch.float64 else result.float()


def experiment(**fields: Any) -> fl.Experiment:
    common = {"clients": 1, "rounds": 1, "local_steps": STEPS, "batch_size": BATCH, "lr": LR, "momentum": 0.0}
    return fl.Experiment(**{"method": "fedavg", "engine": "local", "quiet": True} | common | fields)


def dataset(x: Any) -> fl.Dataset:
    return fl.Dataset(
        "t", take_rows(x, slice(SAMPLES)), Y[:SAMPLES], take_rows(x, slice(SAMPLES, None)), Y[SAMPLES:], CLASSES
    )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "by_piece"), [(name, False) for name in MODULES] + [(name, True) for name in LARGE])
def test_a_client_trains_a_module_as_plain_pytorch_does(
    name: str, by_piece: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if by_piece:
        monkeypatch.setattr(flat, "BY_PIECE", 0)
        monkeypatch.setattr(whole, "BY_PIECE", 0)
    make, x = MODULES[name]
    torch.manual_seed(1)
    given = make()
    before = {name: tensor.clone() for name, tensor in given.state_dict().items()}
    data = dataset(x)
    # The samples of the run: inputs are scaled by the statistics of the training samples.
    scaled = build_run(experiment(), given, data).data
    shard, labels = scaled.client(0)

    history = fl.run(experiment(), model=given, dataset=data, out=tmp_path / "run")

    assert all(torch.equal(tensor, before[name]) for name, tensor in given.state_dict().items())
    bare = given
    while hasattr(bare, "_orig_mod") or isinstance(bare, nn.DataParallel):
        bare = bare.module if isinstance(bare, nn.DataParallel) else bare._orig_mod
    order = generator(0, "batches", 0, 0).permutation(SAMPLES)
    optimizer = torch.optim.SGD(bare.parameters(), lr=LR)
    bare.train()
    for start in range(0, STEPS * BATCH, BATCH):
        rows = order[start : start + BATCH]
        optimizer.zero_grad()
        F.cross_entropy(main_output(bare, take_rows(shard, rows)), torch.from_numpy(labels[rows])).backward()
        optimizer.step()
    expected = {name: tensor.detach().clone() for name, tensor in bare.state_dict().items()}
    bare.load_state_dict(torch.load(history.directory / "model.pt"), strict=True)
    for key, tensor in bare.state_dict().items():
        torch.testing.assert_close(tensor, expected[key], atol=1e-6, rtol=1e-6)
    right = (
        main_output(bare.eval(), take_rows(scaled.dataset.x_test, slice(None))).argmax(1).numpy() == data.y_test
    ).mean()
    assert history.evals["accuracy"].iloc[-1] == pytest.approx(right)
