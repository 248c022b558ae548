"""The workloads of `python -m benchmarks gpu`, trained in bare PyTorch and in pfl-research."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.system.bare import build_mlp
from benchmarks.system.peer_programs.peer_work import WithLoss
from benchmarks.system.trials import synthetic_dataset
from fedraa.data import Dataset
from fedraa.models import build_model

LR = 0.05


@dataclass(frozen=True)
class Workload:
    """Rounds of FedAvg with plain SGD and one local epoch. All clients have the same number of samples."""

    name: str
    make_model: Callable[[], nn.Module]
    shape: tuple[int, ...]
    clients: int
    cohort: int
    samples: int
    batch: int
    rounds: int
    bf16: bool = False

    def dataset(self) -> Dataset:
        """Return random samples for all clients."""
        return synthetic_dataset(self.clients * self.samples, self.shape)


def small_cnn() -> nn.Module:
    """Return the CNN of pfl-research's CIFAR-10 benchmark."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 16 * 16, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def group_norm_resnet() -> nn.Module:
    """Return fedraa's built-in ResNet-18, which has group norm."""
    return build_model("resnet18", torch.zeros(2, 3, 32, 32), 10)


_WORKLOADS = (
    # The workload of the comparison of frameworks in the FLUTE paper.
    Workload("lr-mnist", lambda: build_mlp((784, 10)), (1, 28, 28), 1000, 10, 60, 10, rounds=20),
    Workload("mlp-100", lambda: build_mlp((784, 200, 10)), (1, 28, 28), 100, 100, 600, 32, rounds=2),
    # The CIFAR-10 benchmark of pfl-research.
    Workload("cnn-cifar10", small_cnn, (3, 32, 32), 1000, 50, 50, 10, rounds=3),
    Workload("resnet18", group_norm_resnet, (3, 32, 32), 10, 10, 128, 64, rounds=3),
    Workload("resnet18, bf16", group_norm_resnet, (3, 32, 32), 10, 10, 128, 64, rounds=3, bf16=True),
)
WORKLOADS = {work.name: work for work in _WORKLOADS}


class BareLoop:
    """A plain PyTorch loop that executes rounds of FedAvg, with all data on the device."""

    def __init__(self, work: Workload, device: str) -> None:
        torch.manual_seed(0)
        self._work = work
        self._device = torch.device(device)
        self._model = work.make_model().to(self._device)
        data = work.dataset()
        x, y = torch.from_numpy(data.x_train), torch.from_numpy(data.y_train)
        shape = (work.clients, work.samples)
        self.x = x.view(*shape, *work.shape).to(self._device)
        self.y = y.view(shape).to(self._device)
        self._rng = np.random.default_rng(0)

    def round(self) -> float:
        """Train the clients of a round and average their models. Return the duration in seconds."""
        started = time.perf_counter()
        work = self._work
        initial = {name: value.clone() for name, value in self._model.state_dict().items()}
        total = {name: torch.zeros_like(value) for name, value in initial.items()}
        for client in self._rng.choice(work.clients, work.cohort, replace=False):
            self._model.load_state_dict(initial)
            self._train_client(int(client))
            for name, value in self._model.state_dict().items():
                total[name] += value
        self._model.load_state_dict({name: value / work.cohort for name, value in total.items()})
        synchronize(self._device.type)
        return time.perf_counter() - started

    def _train_client(self, client: int) -> None:
        optimizer = torch.optim.SGD(self._model.parameters(), lr=LR)
        x, y = self.x[client], self.y[client]
        for rows in torch.split(torch.randperm(len(y), device=self._device), self._work.batch):
            optimizer.zero_grad()
            with torch.autocast(self._device.type, torch.bfloat16, enabled=self._work.bf16):
                loss = F.cross_entropy(self._model(x[rows]), y[rows])
            torch.autograd.backward([loss])
            optimizer.step()


def time_pfl(work: Workload, rounds: int) -> list[float]:
    """Return the seconds of each round of pfl-research except the first round.

    If pfl-research is not installed, return an empty list.
    """
    if find_spec("pfl") is None:
        return []
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.internal.ops.pytorch_ops import get_default_device
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Laps(TrainingProcessCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.ends: list[float] = []

        def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> Any:
            synchronize(get_default_device().type)
            self.ends.append(time.perf_counter())
            return False, Metrics()

    device = get_default_device()
    torch.manual_seed(0)
    module = WithLoss(work.make_model())
    loop = BareLoop(work, device.type)
    data = {client: PyTorchTensorDataset((loop.x[client], loop.y[client])) for client in range(work.clients)}
    rng = np.random.default_rng(0)
    dataset = FederatedDataset(lambda user: data[user], lambda: int(rng.integers(work.clients)))
    laps = Laps()
    FederatedAveraging().run(
        NNAlgorithmParams(rounds + 1, 10**9, work.cohort, None),
        SimulatedBackend(training_data=dataset, val_data=None),
        PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(work.batch, 1, LR),
        callbacks=[laps],
        send_metrics_to_platform=False,
    )
    return [float(seconds) for seconds in np.diff(laps.ends)]


def synchronize(device: str) -> None:
    """Wait until the device has finished all operations."""
    if device == "cuda":
        torch.cuda.synchronize()
