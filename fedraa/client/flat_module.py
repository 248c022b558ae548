"""What is trained: a submodel in one flat buffer, or several of the same shape in one."""

from collections.abc import Callable
from typing import Any
from weakref import proxy

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from fedraa.messages import Vector
from fedraa.models.images import ImageConv2d
from fedraa.objectives import Classification, Objective
from fedraa.submodels import trainable, view
from fedraa.submodels.flat import BY_PIECE

PADDING = -100  # a label that stands for no sample

Take = Callable[[slice, Tensor], None]


class FlatModule:
    """A dense submodel whose parameters are views of the buffer `weights` [k], ready to be loaded.

    So are their gradients of `gradient` [k]. Without it the backward pass hands each parameter's gradient on as soon
    as it is there, and keeps none.
    """

    def __init__(
        self, module: nn.Module, weights: Tensor, gradient: Tensor | None, objective: Objective | None = None
    ) -> None:
        self._objective = objective or Classification()
        self.module, self.weights, self._gradient = module, weights, gradient
        self._waiting: dict[nn.Parameter, slice] = {}
        self._take: Take | None = None
        self._pieces: dict[nn.Parameter, slice] = {}
        model, start = proxy(self), 0  # no cycle: a flat module's buffers go when it goes
        for parameter in trainable(module.to(weights.device).train()):
            piece = slice(start, start + parameter.numel())
            parameter.data = weights[piece].view(parameter.shape)
            if gradient is not None:
                parameter.grad = gradient[piece].view(parameter.shape)
            else:
                hook = parameter.register_post_accumulate_grad_hook
                hook(lambda trained: model.hand_on(trained))  # type: ignore[no-untyped-call]  # torch leaves it untyped
            self._pieces[parameter] = piece
            start = piece.stop

    @property
    def whole(self) -> bool:
        """Whether it holds the gradient of all parameters at once."""
        return self._gradient is not None

    @property
    def gradient(self) -> Tensor:
        assert self._gradient is not None
        return self._gradient

    def load(self, params: Vector) -> None:
        """Takes the weights from a buffer [k], which may be read-only."""
        self.weights.copy_(view(params))

    def forward(self, inputs: Any) -> Any:
        """What the module makes of a batch [b, ...]."""
        return self._objective.forward(self.module, inputs)

    def outputs(self, result: Any) -> Tensor:
        """Of that, what the loss is of."""
        return self._objective.outputs(result)

    def loss(self, result: Any, outputs: Tensor, labels: Tensor) -> Tensor:
        """The objective's loss, with those of auxiliary outputs."""
        return self._objective.training_loss(result, outputs, labels)

    def backward(self, loss: Tensor) -> None:
        """Leave the gradient of the loss in `gradient`.

        To copy the gradients that the backward pass makes is faster than to have them added to zeros, but needs
        memory for both.
        """
        if len(self.weights) >= BY_PIECE:
            self.gradient.zero_()
            loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped
            return
        for parameter in self._pieces:
            parameter.grad = None
        loss.backward()  # type: ignore[no-untyped-call]  # likewise
        for parameter, piece in self._pieces.items():
            target = self.gradient[piece].view(parameter.shape)
            if parameter.grad is None:
                target.zero_()
            else:
                target.copy_(parameter.grad)

    def backward_by_piece(self, loss: Tensor, take: Take) -> None:
        """Hands the gradient of the loss to `take`, for each parameter once, flat and with its piece of the buffer.

        By then nothing that the backward pass still needs depends on the parameter: `take` may change it.
        """
        self._waiting, self._take = dict(self._pieces), take
        loss.backward()  # type: ignore[no-untyped-call]  # likewise
        for piece in self._waiting.values():  # of parameters that the loss does not depend on
            take(piece, torch.zeros_like(self.weights[piece]))
        self._take = None

    def hand_on(self, parameter: nn.Parameter) -> None:
        """The parameter's gradient is there."""
        assert parameter.grad is not None
        assert self._take is not None
        self._take(self._waiting.pop(parameter), parameter.grad.view(-1))
        parameter.grad = None


class BatchedModule:
    """Submodels of one shape, trained as one batched computation (`torch.func.vmap`): views of `weights` [height, k].

    It stands in for a FlatModule whose buffers have a row for each of them. What becomes of a row depends on nothing
    in the others, not even whether they are in use: the shapes of all that is computed are always the same.
    """

    def __init__(self, module: nn.Module, height: int, device: torch.device) -> None:
        self._module = module.to(device).train()
        for part in module.modules():
            if isinstance(part, ImageConv2d):
                part.lay_out = False
        parameters = {name: p for name, p in self._module.named_parameters() if p.requires_grad}
        size = sum(p.numel() for p in parameters.values())
        self.weights, self.gradient = (torch.zeros(height, size, device=device) for _ in range(2))
        self._pieces: list[slice] = []
        self._parameters: dict[str, nn.Parameter] = {}
        start = 0
        for name, p in parameters.items():
            piece = slice(start, start + p.numel())
            self._parameters[name] = nn.Parameter(self.weights[:, piece].view(height, *p.shape))
            self._pieces.append(piece)
            start = piece.stop
        self._forward = vmap(lambda parameters, x: functional_call(self._module, parameters, (x,)))

    def load(self, params: Vector) -> None:
        """Takes the weights from a buffer [height, k]."""
        self.weights.copy_(view(params))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [height, b, classes] of a batch [height, b, ...] for each."""
        result: Tensor = self._forward(self._parameters, inputs)
        return result

    def outputs(self, result: Tensor) -> Tensor:
        """The logits themselves."""
        return result

    def loss(self, result: Tensor, outputs: Tensor, labels: Tensor) -> Tensor:
        """The mean cross-entropy [height] over those of the labels [height, b] that are not PADDING, or 0."""
        each = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=PADDING)
        return each.view(labels.shape).sum(1) / (labels != PADDING).sum(1).clamp(min=1)

    def backward(self, loss: Tensor) -> None:
        """Leaves the gradient of each loss [height] in its row of `gradient`."""
        gradients = torch.autograd.grad(loss.sum(), list(self._parameters.values()), materialize_grads=True)
        for piece, gradient in zip(self._pieces, gradients, strict=True):
            self.gradient[:, piece] = gradient.flatten(1)
