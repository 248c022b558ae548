"""Trainable modules with weights in a flat buffer: one submodel, or several of the same shape."""

from collections.abc import Callable
from typing import Any
from weakref import proxy

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from fedraa.messages import Vector
from fedraa.models.images import ImageConv2d
from fedraa.models.statistics import copy_buffers, put_buffers
from fedraa.objectives import Classification, Objective
from fedraa.submodels import trainable_parameters, view_as_tensor
from fedraa.submodels.flat import BY_PIECE
from fedraa.submodels.tracing.modes import WithoutDropout

# Label of padding, which stands for a missing sample.
PADDING = -100

Take = Callable[[slice, Tensor], None]


class FlatModule:
    """A dense submodel with parameters that are views of the buffer `weights` [k].

    Their gradients are views of `gradient` [k]. Without `gradient` the backward pass hands over each parameter's
    gradient as soon as it is computed, and stores no gradient.
    """

    def __init__(
        self, module: nn.Module, weights: Tensor, gradient: Tensor | None, objective: Objective | None = None
    ) -> None:
        self._objective = objective or Classification()
        self.module = module
        self.weights = weights
        self._gradient = gradient
        self._waiting: dict[nn.Parameter, slice] = {}
        self._take: Take | None = None
        self._pieces: dict[nn.Parameter, slice] = {}
        # Views of `gradient` in the shapes of the parameters.
        self._targets: list[Tensor] = []
        # The proxy avoids a reference cycle, so that the buffers are freed together with the flat module.
        model = proxy(self)
        start = 0
        for parameter in trainable_parameters(module.to(weights.device).train()):
            piece = slice(start, start + parameter.numel())
            parameter.data = weights[piece].view(parameter.shape)
            if gradient is not None:
                self._targets.append(gradient[piece].view(parameter.shape))
                parameter.grad = self._targets[-1]
            else:
                # torch leaves this method untyped.
                hook = parameter.register_post_accumulate_grad_hook
                hook(lambda trained: model.hand_on(trained))  # type: ignore[no-untyped-call]
            self._pieces[parameter] = piece
            start = piece.stop

    @property
    def sizes(self) -> list[int]:
        """Return the number of coordinates of each parameter."""
        return [parameter.numel() for parameter in self._pieces]

    @property
    def whole(self) -> bool:
        """Return True if the module stores the gradient of all parameters at once."""
        return self._gradient is not None

    @property
    def gradient(self) -> Tensor:
        assert self._gradient is not None
        return self._gradient

    def load(self, params: Vector) -> None:
        """Copy the weights from a buffer [k], which may be read-only."""
        self.weights.copy_(view_as_tensor(params))

    def forward(self, inputs: Any) -> Any:
        """Return the module's output for a batch [b, ...], which may be several tensors."""
        return self._objective.forward(self.module, inputs)

    def forward_with(self, weights: Tensor, inputs: Any) -> None:
        """Run the module for a batch with other weights [k], without gradients and dropout.

        The weights and the buffers of the module are then as they were. A hook may read the values of a layer.
        """
        own, buffers = self.weights.clone(), copy_buffers(self.module)
        self.weights.copy_(weights)
        with torch.no_grad(), WithoutDropout():
            self.forward(inputs)
        self.weights.copy_(own)
        put_buffers(self.module, buffers)

    def outputs(self, result: Any) -> Tensor:
        """Return the tensor from which the loss is computed, out of the module's result."""
        return self._objective.outputs(result)

    def loss(self, result: Any, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the objective's loss, including the losses of auxiliary outputs.

        Args:
            result: Result of the module.
            outputs: Its tensor with a row per sample.
            labels: Labels of the samples.
        """
        return self._objective.training_loss(result, outputs, labels)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradient of the loss into `gradient`.

        For small models the gradients of the backward pass are copied into this buffer. Adding them to zeros is slower,
        but needs no second buffer, so large models do that.
        """
        if len(self.weights) >= BY_PIECE:
            self.gradient.zero_()
            # torch leaves Tensor.backward untyped.
            loss.backward()  # type: ignore[no-untyped-call]
            return
        for parameter in self._pieces:
            parameter.grad = None
        # torch leaves Tensor.backward untyped.
        loss.backward()  # type: ignore[no-untyped-call]
        for parameter, target in zip(self._pieces, self._targets, strict=True):
            if parameter.grad is None:
                target.zero_()
            else:
                target.copy_(parameter.grad)

    def backward_by_piece(self, loss: Tensor, take: Take) -> None:
        """Pass the loss's gradient to `take`, parameter by parameter: flat, and with the parameter's slice.

        The remaining backward pass does not depend on that parameter, so `take` may change it.
        """
        self._waiting = dict(self._pieces)
        self._take = take
        # torch leaves Tensor.backward untyped.
        loss.backward()  # type: ignore[no-untyped-call]
        # The loss does not depend on these parameters.
        for piece in self._waiting.values():
            take(piece, torch.zeros_like(self.weights[piece]))
        self._take = None

    def hand_on(self, parameter: nn.Parameter) -> None:
        """Pass the complete gradient of `parameter` to `take`."""
        assert parameter.grad is not None
        assert self._take is not None
        self._take(self._waiting.pop(parameter), parameter.grad.view(-1))
        parameter.grad = None


class BatchedModule:
    """Submodels of one shape, trained as one batched computation (`torch.func.vmap`): views of `weights` [height, k].

    It has the interface of FlatModule, but its buffers have one row for each submodel. The result of a row does not
    depend on the other rows, even if these are unused, because the shapes in the computation never change.
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
        self.sizes = [piece.stop - piece.start for piece in self._pieces]
        self._forward = vmap(lambda parameters, x: functional_call(self._module, parameters, (x,)))

    def load(self, params: Vector) -> None:
        """Copy the weights from a buffer [height, k]."""
        self.weights.copy_(view_as_tensor(params))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits [height, b, classes] of a batch [height, b, ...]."""
        result: Tensor = self._forward(self._parameters, inputs)
        return result

    def outputs(self, result: Tensor) -> Tensor:
        """Return the logits unchanged."""
        return result

    def loss(self, result: Tensor, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy [height] over the labels that are not PADDING, or 0 without any.

        Args:
            result: Unused.
            outputs: Logits [height, b, classes].
            labels: Labels [height, b].
        """
        losses = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=PADDING)
        return losses.view(labels.shape).sum(1) / (labels != PADDING).sum(1).clamp(min=1)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradient of each loss [height] into its row of `gradient`."""
        gradients = torch.autograd.grad(loss.sum(), list(self._parameters.values()), materialize_grads=True)
        for piece, gradient in zip(self._pieces, gradients, strict=True):
            self.gradient[:, piece] = gradient.flatten(1)
