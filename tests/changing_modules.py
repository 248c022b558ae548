"""Modules with buffers that training changes, as users write them. Inputs have `WIDTH` features."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

WIDTH = 6


class MovingNorm(nn.Module):
    """A normalisation whose statistics are moving averages, kept as buffers."""

    def __init__(self, momentum: float = 0.5, width: int = WIDTH, persistent: bool = True) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(width), persistent=persistent)
        self.register_buffer("var", torch.ones(width), persistent=persistent)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return (x - self.mean) / (self.var + 1e-5).sqrt()
        mean, var = x.mean(0), x.var(0)
        self.update(mean.detach(), var.detach())
        return (x - mean) / (var + 1e-5).sqrt()

    def update(self, mean: Tensor, var: Tensor) -> None:
        self.mean.lerp_(mean, self.momentum)
        self.var.lerp_(var, self.momentum)


class ReplacingNorm(MovingNorm):
    """A norm that replaces its buffers by assignment, and counts its calls."""

    def __init__(self) -> None:
        super().__init__(0.1)
        self.register_buffer("count", torch.tensor(0))

    def update(self, mean: Tensor, var: Tensor) -> None:
        self.mean = 0.9 * self.mean + 0.1 * mean
        self.var = 0.9 * self.var + 0.1 * var
        self.count = self.count + 1


class DebiasedNorm(MovingNorm):
    """A norm by a moving average that starts at zero and is corrected for this start, as in Adam."""

    def __init__(self) -> None:
        super().__init__(0.05)
        self.register_buffer("count", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.count += 1
            self.mean.lerp_(x.detach().mean(0), self.momentum)
            return x - x.mean(0)
        return x - self.mean / (1 - (1 - self.momentum) ** self.count)


class SummingNorm(nn.Module):
    """A norm with sums over all samples of all earlier batches."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sum", torch.zeros(WIDTH))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x - self.sum / self.count.clamp(min=1)
        self.sum += x.detach().sum(0)
        self.count += len(x)
        return x - x.mean(0)


class ReadingNorm(MovingNorm):
    """A norm that uses its moving average also in training."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.update(x.detach().mean(0), x.detach().var(0))
        return (x - self.mean) / (self.var + 1e-5).sqrt()


class Codebook(nn.Module):
    """The quantiser of a VQ-VAE. A code is the moving average of the vectors that are mapped to it."""

    def __init__(self, decay: float = 0.99) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.randn(8, WIDTH))
        self.register_buffer("sizes", torch.ones(8))
        self.register_buffer("sums", self.codes.clone())

    def forward(self, x: Tensor) -> Tensor:
        nearest = torch.cdist(x, self.codes).argmin(1)
        code = self.codes[nearest]
        if self.training:
            with torch.no_grad():
                one_hot = F.one_hot(nearest, 8).float()
                self.sizes.lerp_(one_hot.sum(0), 1 - self.decay)
                self.sums.lerp_(one_hot.T @ x, 1 - self.decay)
                self.codes.copy_(self.sums / self.sizes[:, None].clamp(min=1e-3))
        return x + (code - x).detach()


class Teacher(nn.Module):
    """A layer with a moving average of its weights, as a buffer or as a frozen parameter."""

    def __init__(self, frozen: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)
        start = self.layer.weight.detach().clone()
        if frozen:
            self.average: Any = nn.Parameter(start, requires_grad=False)
        else:
            self.register_buffer("average", start)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return self.layer(x)
        with torch.no_grad():
            self.average.lerp_(self.layer.weight, 0.01)
        return self.layer(x) + 0.1 * x @ self.average.T


class WarmUp(nn.Module):
    """A layer that changes its behaviour after some steps. The counter of steps is a buffer or a plain attribute."""

    def __init__(self, attribute: bool = False) -> None:
        super().__init__()
        self.steps: Any
        if attribute:
            self.steps = 0
        else:
            self.register_buffer("steps", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return x if self.steps < 500 else 2 * x


class Queue(nn.Module):
    """A queue of earlier samples, as in MoCo."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("queue", torch.randn(16, WIDTH))
        self.register_buffer("end", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        y = x + 0.01 * x @ self.queue.T @ self.queue
        places = (torch.arange(len(x)) + int(self.end)) % 16
        self.queue[places] = x.detach()
        self.end[0] = (int(self.end) + len(x)) % 16
        return y


class UnregisteredNorm(nn.Module):
    """A norm with its mean in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.mean = torch.zeros(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x - self.mean
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
        return x - x.mean(0)


class HookedLayer(nn.Linear):
    """A layer with hooks that store means of its outputs and of their gradients. Evaluation reads one of the means."""

    def __init__(self, read: str) -> None:
        super().__init__(WIDTH, WIDTH)
        self.read = read
        self.register_buffer("outputs", torch.zeros(WIDTH))
        self.register_buffer("gradients", torch.zeros(WIDTH))
        self.register_forward_hook(_keep_outputs)
        self.register_full_backward_hook(_keep_gradients)

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y if self.training else y - getattr(self, self.read)


def _keep_outputs(layer: Any, inputs: Any, outputs: Tensor) -> None:
    if layer.training:
        layer.outputs.lerp_(outputs.detach().mean(0), 0.1)


def _keep_gradients(layer: Any, inputs: Any, outputs: Any) -> None:
    layer.gradients.lerp_(outputs[0].mean(0), 0.1)


class Rotation(nn.Module):
    """A table that the first forward pass fills, always with the same values."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", None, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.linspace(0, 1, x.shape[1]).cos()
        return x * self.table


class Logger(nn.Module):
    """A layer that stores numbers which no computation reads."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.last, self.means = 0, None, []
        self.register_buffer("samples", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
            self.samples += len(x)
            self.last = x.detach()
            self.means.append(float(x.mean()))
        return x


class AlwaysNorm(nn.Module):
    """A norm that also updates its mean in evaluation mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - (x.mean(0) if self.training else self.mean)


class FrozenNorm(nn.BatchNorm1d):
    """A batch norm that stays in evaluation mode."""

    def train(self, mode: bool = True) -> "FrozenNorm":
        return super().train(False)


class Squeezed(nn.Module):
    """A classifier that ends in `.squeeze()`."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze()
