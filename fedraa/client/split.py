"""Split learning (SplitFed V1): the client trains a model's first layers, and the server the others."""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedraa.errors import InputError
from fedraa.messages import Vector
from fedraa.numbers import format_count
from fedraa.submodels import Cost
from fedraa.submodels.flat import frozen_parameters, trainable_parameters
from fedraa.submodels.meter import Meter


@dataclass(frozen=True)
class SplitCosts:
    """The costs of a split model.

    Attributes:
        cost: The cost of the client's part.
        activations: Number of values that the client sends to the server for each sample.
        server_flops: FLOPs of the server's part per sample, forward and backward; 0 if not measured.
    """

    cost: Cost
    activations: int
    server_flops: float = 0.0


class Channel:
    """The channel between both parts of a split model. It copies tensors as float32 and counts the bytes.

    Attributes:
        up: Bytes that the client has sent to the server.
        down: Bytes that the server has sent to the client.
    """

    def __init__(self) -> None:
        self.up = 0
        self.down = 0

    def send_up(self, activations: Tensor) -> Tensor:
        buffer, crossed = _copy_across(activations)
        self.up += buffer.nbytes
        return crossed

    def send_down(self, gradient: Tensor) -> Tensor:
        buffer, crossed = _copy_across(gradient)
        self.down += buffer.nbytes
        return crossed


class _Crossing(torch.autograd.Function):
    """The transfer between the two halves, as an autograd function.

    The forward pass sends activations to the server's half. The backward pass sends their gradient back.
    """

    @staticmethod
    def forward(ctx: Any, activations: Tensor, channel: Channel) -> Tensor:
        ctx.channel = channel
        return channel.send_up(activations)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.channel.send_down(gradients[0]), None


class SplitBody(nn.Module):
    """A split model: the client's half, and this client's copy of the server's half.

    The halves share no tensor, and exchange data only through the channel.

    Args:
        module: The whole model, an nn.Sequential.
        at: Number of layers in the client's half.
    """

    def __init__(self, module: nn.Module, at: int) -> None:
        super().__init__()
        layers = check_split(module, at)
        self.client_half = nn.Sequential(*layers[:at])
        self.server_half = nn.Sequential(*layers[at:])
        self.channel = Channel()

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        # torch leaves this method untyped.
        crossed = _Crossing.apply(self.client_half(x), self.channel)  # type: ignore[no-untyped-call]
        result: Tensor = self.server_half(crossed)
        return result


def check_split(module: nn.Module, at: int) -> list[nn.Module]:
    """Return the layers of a model that is split after `at` layers. Raise InputError if it cannot be split."""
    if not isinstance(module, nn.Sequential) or len(module) <= at:
        problem = "the model is not an nn.Sequential"
        if isinstance(module, nn.Sequential):
            problem = f"the model has {format_count(len(module), 'layer')}"
        expected = f"a model that is an nn.Sequential of more than {format_count(at, 'layer')}"
        raise InputError("split", problem, got=module, expected=expected)
    layers = list(module)
    client_half, server_half = ({*nn.ModuleList(half).parameters()} for half in (layers[:at], layers[at:]))
    if client_half & server_half:
        problem = f"a parameter of the first {at} layers is also in a later layer, which only the server has"
        raise InputError("split", problem, hint="split the model at another layer, or share no parameters")
    return layers


def measure_split(module: nn.Module, at: int, example: Tensor) -> SplitCosts:
    """Measure the costs of a model that is split after its first `at` layers.

    Args:
        module: The whole model.
        at: Number of layers in the client's part.
        example: A batch of samples [b, ...].
    """
    layers = check_split(module, at)
    stem = copy.deepcopy(nn.Sequential(*layers[:at])).train()
    with Meter() as meter:
        activations = stem(example)
        if activations.requires_grad:
            activations.sum().backward()
    params = sum(parameter.numel() for parameter in trainable_parameters(stem))
    frozen = sum(parameter.numel() for parameter in frozen_parameters(stem))
    if params == 0:
        raise InputError("split", "the client has no parameter to train", got=at, hint="split after a later layer")
    crossing = activations[0].numel()
    flops = meter.flops / len(example)
    memory = 4 * (3 * params + frozen + len(example) * (example[0].numel() + crossing))
    with Meter() as meter:
        result = nn.Sequential(*copy.deepcopy(layers[at:])).train()(activations.detach().requires_grad_())
        result.sum().backward()
    return SplitCosts(Cost(params, 4 * params, flops, memory), crossing, meter.flops / len(example))


def _copy_across(tensor: Tensor) -> tuple[Vector, Tensor]:
    buffer = tensor.detach().to("cpu", torch.float32, copy=True).numpy()
    return buffer, torch.from_numpy(buffer).to(tensor.device)
