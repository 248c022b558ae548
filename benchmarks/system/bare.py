"""A plain PyTorch training loop to compare fedraa with."""

import multiprocessing
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection, wait

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

Shards = list[tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]]


@dataclass(frozen=True)
class Spent:
    """The cost of a measurement.

    Attributes:
        wall: Elapsed seconds.
        cpu: CPU seconds of all processes together.
    """

    wall: float
    cpu: float


@dataclass(frozen=True)
class Settings:
    """The settings of plain minibatch SGD."""

    epochs: int
    batch: int
    lr: float
    momentum: float = 0.5
    device: str = "cpu"


class BareProcesses:
    """Processes that train clients in plain PyTorch. Each process has the data of all clients.

    Args:
        widths: The widths of the model's layers.
        shards: The data of each client.
        settings: The settings of SGD.
        processes: The number of processes.
    """

    def __init__(self, widths: Sequence[int], shards: Shards, settings: Settings, *, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._model = build_mlp(widths)
        self._pipes: list[Connection] = []
        self._processes = []
        for number in range(processes):
            parent_end, child_end = context.Pipe()
            arguments = (child_end, tuple(widths), shards, slice(number, None, processes), settings)
            process = context.Process(target=_serve_tasks, args=arguments, daemon=True)
            process.start()
            # If this process kept the child's end open, a read would wait forever after the child died.
            child_end.close()
            self._pipes.append(parent_end)
            self._processes.append(process)

    def round(self) -> Spent:
        """Run one round of FedAvg and return its cost.

        Each process trains an equal number of clients and adds up their weights. The parent process averages the sums.
        """
        started, used = time.perf_counter(), time.process_time()
        state = {name: tensor.numpy() for name, tensor in self._model.state_dict().items()}
        for pipe in self._pipes:
            pipe.send(state)
        sums, counts, cpu = zip(*[pipe.recv() for pipe in self._pipes], strict=True)
        mean = {name: sum(total[name] for total in sums) / sum(counts) for name in state}
        self._model.load_state_dict({name: torch.from_numpy(value) for name, value in mean.items()})
        return Spent(time.perf_counter() - started, time.process_time() - used + sum(cpu))

    def tasks(self, tasks: Sequence[tuple[int, int]]) -> Spent:
        """Train tasks (client, hidden units). A process that ends a task gets the next one, so that none is idle."""
        started, used = time.perf_counter(), time.process_time()
        waiting = deque(tasks)
        cpu = 0.0
        busy: list[Connection] = []
        for pipe in self._pipes[: len(tasks)]:
            pipe.send(waiting.popleft())
            busy.append(pipe)
        while busy:
            for ready in wait(busy):
                assert isinstance(ready, Connection)
                cpu += ready.recv()
                if waiting:
                    ready.send(waiting.popleft())
                else:
                    busy.remove(ready)
        return Spent(time.perf_counter() - started, time.process_time() - used + cpu)

    def close(self) -> None:
        for pipe, process in zip(self._pipes, self._processes, strict=True):
            pipe.send(None)
            process.join()


def build_mlp(widths: Sequence[int]) -> nn.Sequential:
    """Return an MLP with ReLU between its layers. `widths` are the sizes from input to output."""
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def train_model(model: nn.Module, x: torch.Tensor, y: torch.Tensor, settings: Settings) -> None:
    """Train a model in place with a plain PyTorch loop.

    Args:
        model: The model.
        x: The inputs [n, ...].
        y: The labels [n].
        settings: The settings of SGD.
    """
    optimizer = torch.optim.SGD(model.parameters(), lr=settings.lr, momentum=settings.momentum)
    for _ in range(settings.epochs):
        order = torch.randperm(len(y), device=y.device)
        for start in range(0, len(y), settings.batch):
            rows = order[start : start + settings.batch]
            optimizer.zero_grad()
            torch.autograd.backward([F.cross_entropy(model(x[rows]), y[rows])])
            optimizer.step()


def _serve_tasks(pipe: Connection, widths: tuple[int, ...], shards: Shards, own: slice, settings: Settings) -> None:
    """Serve training requests of the parent process until it sends None.

    Args:
        pipe: The connection to the parent process.
        widths: The widths of the model's layers.
        shards: The data of all clients.
        own: The clients that this process trains in a round.
        settings: The settings of SGD.
    """
    torch.set_num_threads(1)
    device = torch.device(settings.device)
    model = build_mlp(widths).to(device)
    data = [(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)) for x, y in shards]
    for request in iter(pipe.recv, None):
        used = time.process_time()
        # The parent sends a tuple to request a task, and the state of a global model to request a round.
        if isinstance(request, tuple):
            client, width = request
            train_model(build_mlp((widths[0], width, widths[-1])).to(device), *data[client], settings)
            if device.type == "cuda":
                torch.cuda.synchronize()
            pipe.send(time.process_time() - used)
            continue
        start = {name: torch.from_numpy(value).to(device) for name, value in request.items()}
        total = {name: torch.zeros_like(value) for name, value in start.items()}
        for x, y in data[own]:
            model.load_state_dict(start)
            train_model(model, x, y, settings)
            for name, value in model.state_dict().items():
                total[name] += value
        pipe.send(
            ({name: value.cpu().numpy() for name, value in total.items()}, len(data[own]), time.process_time() - used)
        )
