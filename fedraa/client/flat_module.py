"""Modules with all parameters in one flat buffer. They compute one submodel, or several of the same shape."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import proxy

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from fedraa.components.calls import call_custom
from fedraa.messages import Task, Vector
from fedraa.models.images import ImageConv2d
from fedraa.models.statistics import copy_buffers, put_buffers
from fedraa.objectives import Classification, Objective
from fedraa.submodels import view_as_tensor
from fedraa.submodels.flat import find_embeddings, find_merged, is_large, locate_parameters
from fedraa.submodels.tracing.modes import WithoutDropout

# The label of empty rows. A minibatch has empty rows if its client has too few samples.
PADDING = -100

Take = Callable[[slice, Tensor], None]


class FlatModule:
    """A module whose trainable parameters are views of one flat buffer.

    Args:
        module: The module of a dense submodel.
        weights: The buffer [k] of all trainable parameters.
        gradient: The buffer [k] of their gradients. None saves memory: the backward pass then hands the gradient of
            each parameter to a function and deletes it.
        objective: The objective that computes the loss; None for classification.
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
        # The hook holds only a weak reference, because a reference cycle would delay the release of the buffers.
        model = proxy(self)
        for parameter, piece in locate_parameters(module.to(weights.device).train()):
            parameter.data = weights[piece].view(parameter.shape)
            if gradient is None:
                # torch leaves this method untyped.
                hook = parameter.register_post_accumulate_grad_hook
                hook(lambda trained: model.hand_on(trained))  # type: ignore[no-untyped-call]
            self._pieces[parameter] = piece
        self.sizes = [piece.stop - piece.start for piece in self._pieces.values()]
        """The number of elements of each trainable parameter."""
        self.embeddings = find_embeddings(module)
        """The slices of the buffers with embeddings."""
        self.merged = find_merged(module)
        """The slices of the buffers with parameters that only the server changes (`Adapted.merged`)."""

    @property
    def whole(self) -> bool:
        """True if the module has a buffer for the gradients of all parameters."""
        return self._gradient is not None

    @property
    def gradient(self) -> Tensor:
        assert self._gradient is not None
        return self._gradient

    def load(self, params: Vector) -> None:
        """Copy the weights [k] into the module. Delete the gradients of earlier tasks. `params` may be read-only."""
        self.weights.copy_(view_as_tensor(params))
        self._delete_gradients()

    def forward(self, inputs: Any) -> Any:
        """Return the module's result for a batch [b, ...]: one tensor, or several."""
        return call_custom("model", self.module, self._objective.forward, self.module, inputs)

    def forward_with(self, weights: Tensor, inputs: Any) -> None:
        """Run the module with the weights [k], without gradients and dropout. Use hooks to read its values.

        The weights and the buffers of the module are restored afterwards.
        """
        own, buffers = self.weights.clone(), copy_buffers(self.module)
        self.weights.copy_(weights)
        with torch.no_grad(), WithoutDropout():
            self.forward(inputs)
        self.weights.copy_(own)
        put_buffers(self.module, buffers)

    def outputs(self, result: Any) -> Tensor:
        """Return the tensor in the module's result that has one row per sample."""
        return call_custom("objective", self._objective, self._objective.outputs, result)

    def loss(self, result: Any, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of the objective, including the losses of auxiliary outputs.

        Args:
            result: The result of the module.
            outputs: The tensor in `result` that has a row per sample.
            labels: The labels of the samples.
        """
        return call_custom("objective", self._objective, self._objective.training_loss, result, outputs, labels)

    def output_loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean loss of the objective for one output, such as the logits of an early exit."""
        return call_custom("objective", self._objective, self._objective.loss, outputs, labels)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradient of the loss and store it in the buffer `gradient`."""
        if is_large(len(self.weights), self.weights.device):
            self.gradient.zero_()
            # A training loop on the module, such as a custom LocalAlgorithm, may have replaced the gradients.
            for parameter, piece in self._pieces.items():
                parameter.grad = self.gradient[piece].view(parameter.shape)
            # torch leaves Tensor.backward untyped.
            loss.backward()
            return
        self._delete_gradients()
        # torch leaves Tensor.backward untyped.
        loss.backward()
        # One call copies all gradients, because starting a copy on a GPU takes as long as copying a small parameter.
        torch.cat([_flat_gradient(parameter) for parameter in self._pieces], out=self.gradient)

    def backward_by_piece(self, loss: Tensor, take: Take) -> None:
        """Compute the gradient of the loss. Pass each parameter's gradient to `take` as soon as it is complete.

        Args:
            loss: The loss.
            take: A function that receives the slice of `weights` that belongs to the parameter, and the parameter's
                gradient as a vector. It may change the parameter, because the backward pass does not read the
                parameter again.
        """
        # A training loop on the module, such as a custom LocalAlgorithm, may have left gradients.
        self._delete_gradients()
        self._waiting = dict(self._pieces)
        self._take = take
        # torch leaves Tensor.backward untyped.
        loss.backward()
        # The loss does not depend on the remaining parameters, so their gradients are 0.
        for piece in self._waiting.values():
            take(piece, torch.zeros_like(self.weights[piece]))
        self._take = None

    def hand_on(self, parameter: nn.Parameter) -> None:
        """Pass the gradient of a parameter to the `take` of `backward_by_piece`. Then delete the gradient.

        In other backward passes, such as those of a custom LocalAlgorithm, the parameter keeps its gradient.
        """
        if self._take is None:
            return
        assert parameter.grad is not None
        self._take(self._waiting.pop(parameter), parameter.grad.view(-1))
        parameter.grad = None

    def _delete_gradients(self) -> None:
        for parameter in self._pieces:
            parameter.grad = None


class BatchedModule:
    """Several submodels of the same shape, trained as one batched computation (`torch.func.vmap`).

    It has the interface of FlatModule, but its buffers [height, k] have one row per submodel. The result of a row does
    not depend on other rows.
    """

    def __init__(self, module: nn.Module, height: int, device: torch.device) -> None:
        # For some operators, such as attention on a CPU, vmap computes one row after the other. The results are the
        # same, and only PyTorch can change this. PyTorch's warning asks the user to report it.
        warnings.filterwarnings("ignore", "There is a performance drop .* the batching rule for", UserWarning)
        self.module = module.to(device).train()
        for part in module.modules():
            if isinstance(part, ImageConv2d):
                part.lay_out = False
        parameters = {name: p for name, p in self.module.named_parameters() if p.requires_grad}
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
        self.embeddings = find_embeddings(self.module)
        self.merged = find_merged(self.module)
        self._forward = vmap(lambda parameters, x: functional_call(self.module, parameters, (x,)))

    def load(self, params: Vector) -> None:
        """Copy the weights [height, k] into the module."""
        self.weights.copy_(view_as_tensor(params))

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits [height, b, classes] of the inputs [height, b, ...]."""
        result: Tensor = self._forward(self._parameters, inputs)
        return result

    def outputs(self, result: Tensor) -> Tensor:
        """Return the logits unchanged."""
        return result

    def loss(self, result: Tensor, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy [height] of each row.

        Labels equal to PADDING do not count. The loss of a row with only PADDING is 0.

        Args:
            result: Unused. FlatModule has the same argument.
            outputs: Logits [height, b, classes].
            labels: Labels [height, b].
        """
        losses = F.cross_entropy(outputs.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=PADDING)
        return losses.view(labels.shape).sum(1) / (labels != PADDING).sum(1).clamp(min=1)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradient of each entry of `loss` [height], and store it in the same row of `gradient`."""
        gradients = torch.autograd.grad(loss.sum(), list(self._parameters.values()), materialize_grads=True)
        # `torch.cat` with `out` refuses tensors of an autograd graph. In PyTorch 2.9, the zero gradient of a parameter
        # that has no influence on the loss is such a tensor.
        torch.cat([gradient.detach().flatten(1) for gradient in gradients], dim=1, out=self.gradient)


def mask_merged(task: Task, model: FlatModule | BatchedModule) -> Task:
    """Return the task with a mask that excludes the model's parameters `merged`, which clients neither train nor send.

    A task that has a mask stays unchanged.
    """
    if task.mask is not None or not model.merged:
        return task
    mask = np.ones(task.params.shape, bool)
    for piece in model.merged:
        mask[..., piece] = False
    return replace(task, mask=mask, keeps_rest=True)


def _flat_gradient(parameter: nn.Parameter) -> Tensor:
    """Return the parameter's gradient as a vector; zeros if it has none."""
    if parameter.grad is None:
        return torch.zeros_like(parameter).detach().view(-1)
    return parameter.grad.detach().reshape(-1)
