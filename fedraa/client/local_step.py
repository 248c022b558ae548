"""The local steps of a task: gradient, gradient transforms, mask, SAM, local optimizer and compression."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from types import EllipsisType
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedraa.client.compression import COMPRESSOR, Compressor
from fedraa.client.embedding_steps import EmbeddingSteps, uses_adam
from fedraa.client.error_feedback import compress_with_feedback
from fedraa.client.flat_module import BatchedModule, FlatModule
from fedraa.client.gradient_transforms import (
    EPSILON,
    GRADIENT_TRANSFORM,
    AddVector,
    Clipping,
    GradientTransform,
    Proximal,
    ServerMomentum,
    StepContext,
    WeightDecay,
    begin_transforms,
    gradient_norm,
)
from fedraa.client.input_adversary import Adversary
from fedraa.client.local_optimizer import LOCAL_OPTIMIZER, OPTIMIZER_PREFIX, LocalOptimizer, OptimizerSteps
from fedraa.client.local_training import LocalTraining
from fedraa.client.logit_calibration import log_prior
from fedraa.client.lr_schedule import local_factor
from fedraa.components.calls import change_in_place, convert_errors
from fedraa.components.text import is_built_in
from fedraa.data.tree import map_tree
from fedraa.errors import InputError
from fedraa.messages import Task, Vector
from fedraa.submodels import view_as_tensor

Penalty = Callable[[], Tensor]
# Names of buffers that the server sends with a task. Gradient transforms use them.
BLENDED = ("control", "momentum")


@dataclass(frozen=True)
class StepComponents:
    """The components of local steps, created once for all tasks of a trainer.

    Attributes:
        compressor: The compressor of the delta.
        optimizer: The local optimizer.
        custom_transforms: The custom gradient transforms. Built-in ones are created from the settings.
        label_shares: The share of each label in the data of all clients; None for equal shares.
    """

    compressor: Compressor
    optimizer: LocalOptimizer
    custom_transforms: tuple[GradientTransform, ...]
    label_shares: tuple[float, ...] | None = None

    @classmethod
    def of(cls, local: LocalTraining, label_shares: tuple[float, ...] | None = None) -> Self:
        compressor = COMPRESSOR.resolve(local.compressor)
        if local.error_feedback != "none":
            for_feedback = compressor.for_feedback()
            assert for_feedback is not None, "compressors without a small error are refused before the run"
            compressor = for_feedback
        return cls(
            compressor,
            LOCAL_OPTIMIZER.resolve(local.local_optimizer),
            tuple(map(GRADIENT_TRANSFORM.resolve, local.transforms)),
            label_shares,
        )


class LocalStep:
    """The local steps of one task. The docstring of LocalTraining lists the parts of a step in order.

    With a BatchedModule, `task` stands for several tasks. Buffers are then [rows, k], and losses [rows]. The next step
    has the learning rate `rate(position)`. Each step adds 1 to `position`, and a caller may set it before a step.
    """

    def __init__(
        self,
        local: LocalTraining,
        components: StepComponents,
        model: FlatModule | BatchedModule,
        task: Task,
        labels: Sequence[npt.NDArray[np.int64]],
        device: torch.device,
        *,
        steps: int = 1,
        bf16: bool = False,
    ) -> None:
        """Load the task's weights into the model, and create the task's gradient transforms and optimizer.

        Args:
            local: The settings of local training.
            components: The compressor, the optimizer and the custom gradient transforms.
            model: The module to train.
            task: The task, or one task that stands for several.
            labels: An array of labels for each client. A single task has one array.
            device: Device of the model.
            steps: Number of local steps of the task. The learning rate may depend on it.
            bf16: True to compute the forward pass in bfloat16.
        """
        tensor = partial(torch.tensor, device=device)
        self.model = model
        self.settings = local
        self.adversary: Adversary | None = None
        self.task = task
        self._components = components
        self._lr = task.lr
        self._bf16 = bf16
        self._factor = local_factor(local.lr_schedule, steps)
        self.position = 0
        self._penalty: Penalty | None = None
        self._compressor = components.compressor
        self._mask = None if task.mask is None else tensor(task.mask).to(torch.float32)
        self._keeps_rest = task.keeps_rest and self._mask is not None
        # True if weights outside of the mask may differ from 0. `limit_to` also sets it.
        self._has_rest = self._keeps_rest
        extras = {name: tensor(task.extra_values(name)) for name in task.extras if name in BLENDED}
        self._transforms = self._begin_transforms(extras)
        model.load(task.params)
        if not self._keeps_rest:
            self._apply_mask(model.weights)
        self._anchor = model.weights
        if local.prox_mu or local.transforms or not self._compressor.lossless:
            # The anchor is the received weights. Without a mask, it is a view of the task's buffer. On a CPU, the view
            # saves a copy.
            self._anchor = view_as_tensor(task.params).to(device) if self._mask is None else model.weights.clone()
        kept = [name for name in task.extras if name.startswith(OPTIMIZER_PREFIX)]
        self._kept = {name.removeprefix(OPTIMIZER_PREFIX): tensor(task.extra_values(name)) for name in kept}
        self.embeddings = model.embeddings if uses_adam(local, components.optimizer) else []
        self.start_optimizer()
        self.squares = torch.zeros_like(model.weights) if local.squares else None
        self._labels: list[Tensor] | None = None
        if local.label_masked:
            self._labels = [torch.from_numpy(np.unique(y)).to(device) for y in labels]
        self._shards = labels
        self._prior: Tensor | None = None

    def received_buffer(self, buffer: Vector) -> Tensor:
        """Return a copy of a task's buffer [k] on the model's device.

        Values outside of the task's mask are set to 0. If `keeps_rest` is set in the task, they stay unchanged.
        """
        received = torch.tensor(buffer, device=self.model.weights.device)
        return received if self._keeps_rest else self._apply_mask(received)

    def restart(self, received: Tensor, pull: float) -> "LocalStep":
        """Return the local steps that train a second model on the same module. They have a new optimizer.

        The new local steps use neither SAM nor the server's control variate or momentum.

        Args:
            received: The received weights [k].
            pull: The weight of a proximal term that pulls towards the received weights.
        """
        again = copy(self)
        again.settings = replace(self.settings, prox_mu=pull, control=False, grad_mix=1.0, sam_rho=0.0)
        again.adversary = None
        again.squares = None
        if pull:
            # The proximal term gives unused tokens a gradient.
            again.embeddings = []
        again._anchor = received
        again._transforms = again._begin_transforms({})
        again._kept = {}
        again.position = 0
        again.start_optimizer()
        return again

    def _begin_transforms(self, extras: Mapping[str, Tensor]) -> list[GradientTransform]:
        """Return the gradient transforms of the task, in the order of LocalTraining's docstring."""
        local = self.settings
        transforms: list[GradientTransform] = []
        if local.prox_mu:
            transforms.append(Proximal(local.prox_mu))
        transforms += self._components.custom_transforms
        if local.control:
            transforms.append(AddVector())
        if local.grad_mix < 1:
            transforms.append(ServerMomentum(local.grad_mix))
        if local.clip:
            transforms.append(Clipping(local.clip))
        if local.weight_decay and not self._components.optimizer.decoupled:
            transforms.append(WeightDecay(local.grad_mix * local.weight_decay))
        return begin_transforms(transforms, extras)

    def start_optimizer(self) -> None:
        """Create the optimizer, at the current weights. Call this again only before the first step."""
        optimizer, weights, sizes = self._components.optimizer, self.model.weights, self.model.sizes
        momentum, decay = self.settings.momentum, self.settings.weight_decay
        steps = OptimizerSteps(optimizer, weights, self._kept, momentum=momentum, weight_decay=decay, sizes=sizes)
        self._optimizer = EmbeddingSteps(steps, weights, self.embeddings) if self.embeddings else steps

    def add_transform(self, transform: GradientTransform) -> None:
        """Add a gradient transform. In every step, it is applied before all other gradient transforms."""
        if self._anchor is self.model.weights:
            self._anchor = self.received_buffer(self.task.params)
        self._transforms.insert(0, transform)
        if self.embeddings and not self.position:
            # The transform may give unused tokens a gradient.
            self.embeddings = []
            self.start_optimizer()

    @contextmanager
    def limit_to(self, only: Tensor) -> Iterator[None]:
        """Limit training in the `with` block to the coordinates for which the mask `only` [k] is True."""
        mask = self._mask
        self._mask = only.to(torch.float32)
        if mask is not None:
            self._mask *= mask
        self._has_rest = True
        yield
        self._mask = mask
        self._has_rest = self._keeps_rest

    def rate(self, steps_taken: int) -> float:
        """Return the learning rate of the next step after `steps_taken` steps of the task."""
        return self._lr * self._factor(steps_taken)

    def compress(
        self,
        rng: np.random.Generator,
        row: int | EllipsisType = ...,
        personal: Tensor | None = None,
        kept: Tensor | None = None,
    ) -> None:
        """Replace the trained weights by the weights that the server computes from the compressed delta.

        Args:
            rng: The random generator of the compressor for this client and task.
            row: The row of the task if the buffers hold several tasks; `...` for a single task.
            personal: A mask [k] of coordinates that the client does not send; None if it sends all.
            kept: The client's values of error feedback [k], changed in place; None without error feedback.
        """
        w, anchor = self.model.weights[row], self._anchor[row]
        sent: Tensor | slice = slice(None)
        if self._mask is not None:
            sent = self._mask[row] > 0
        if personal is not None:
            sent = ~personal if isinstance(sent, slice) else sent & ~personal
        delta = (w - anchor)[sent]
        if kept is None:
            arrived = self._compress_delta(delta, rng)
        else:
            kind = self.settings.error_feedback
            compress = partial(self._compress_delta, rng=rng)
            arrived, kept[sent] = compress_with_feedback(kind, delta, kept[sent], compress)
        w[sent] = anchor[sent] + arrived

    def _compress_delta(self, delta: Tensor, rng: np.random.Generator) -> Tensor:
        with convert_errors("compress", self._compressor):
            arrived = self._compressor.apply(delta, rng)
        if not isinstance(arrived, Tensor) or arrived.shape != delta.shape:
            problem = f"{type(self._compressor).__name__}.apply returned a wrong value"
            raise InputError("compress", problem, got=arrived, expected=f"a tensor {list(delta.shape)}, like the delta")
        return arrived

    def optimizer_state(self, row: int | EllipsisType = ...) -> dict[str, Tensor]:
        """Return the optimizer's state of one task by buffer name. If clients keep no state, return an empty dict."""
        if self.settings.optimizer_state != "keep":
            return {}
        return self._optimizer.state(row)

    def step(self, inputs: Any, labels: Tensor, penalty: Penalty | None = None) -> Tensor:
        """Take one step on a minibatch. Return the loss of the minibatch at the weights before the step.

        Args:
            inputs: The inputs.
            labels: The labels.
            penalty: A function without arguments that returns a term of the loss. It is called after each forward pass.
        """
        self._penalty = penalty
        self._rate = self.rate(self.position)
        self.position += 1
        self._optimizer.begin_step()
        if self.adversary is not None:
            self.adversary.ascend_loss(self.loss(self.adversary.perturb_inputs(inputs), labels) * len(labels))
            inputs = self.adversary.perturb_inputs(inputs).detach()
        if isinstance(self.model, BatchedModule) or self.model.whole:
            loss = self._loss_gradient(inputs, labels)
            self._descend_piece(..., self.model.gradient)
        else:
            loss = self.loss(inputs, labels)
            self.model.backward_by_piece(loss, lambda piece, g: self._descend_piece(piece, self._apply_mask(g, piece)))
        return loss.detach()

    def gradient(self, inputs: Any, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss of a minibatch, and its masked gradient [k] after all gradient transforms.

        The next backward pass overwrites the gradient.
        """
        loss = self._plain_gradient(inputs, labels)
        self._apply_transforms(..., self.model.weights, self.model.gradient)
        return loss.detach(), self.model.gradient

    def _descend_piece(self, piece: slice | EllipsisType, g: Tensor) -> None:
        """Take the step on one chunk of the buffer. Its masked gradient `g` is overwritten."""
        weights = self.model.weights[piece]
        self._apply_transforms(piece, weights, g)
        if not self._keeps_rest:
            self._optimizer.descend(weights, g, piece, self._rate)
            return
        assert self._mask is not None
        # The weights outside of the mask are not 0 in this branch. AdamW would decay them.
        before = weights.clone()
        self._optimizer.descend(weights, g, piece, self._rate)
        weights.copy_(torch.where(self._mask[piece] > 0, weights, before))

    def _apply_transforms(self, piece: slice | EllipsisType, weights: Tensor, g: Tensor) -> None:
        """Apply all gradient transforms in place to the masked gradient of one chunk."""
        if not self._transforms:
            return
        at = StepContext(weights, self._anchor[piece], piece)
        for transform in self._transforms:
            if is_built_in(transform):
                # The checks of `change_in_place` would take several microseconds per chunk.
                transform.apply(g, at)
            else:
                change_in_place("gradient_transforms", transform, "apply", g, at, name="grad")
            if transform.masked or self._has_rest:
                self._apply_mask(g, piece)

    def loss(self, inputs: Any, labels: Tensor) -> Tensor:
        """Return the mean loss of a minibatch, after the changes of the logits that LocalTraining describes."""
        if self._bf16:
            with torch.autocast(labels.device.type, torch.bfloat16):
                result = self.model.forward(inputs)
            outputs = self.model.outputs(result).float()
        else:
            result = self.model.forward(inputs)
            outputs = self.model.outputs(result)
        if self._labels is not None:
            held = outputs.new_zeros(len(self._labels), outputs.shape[-1])
            for row, mine in zip(held, self._labels, strict=True):
                row[mine] = 1.0
            outputs = outputs * held.view(*outputs.shape[:-2], 1, -1)
        share = self.settings.logit_calibration
        if share:
            if self._prior is None:
                prior = log_prior(self._shards, outputs.shape[-1], share, self._components.label_shares)
                self._prior = prior.to(outputs.device)
            outputs = outputs + self._prior.view(*outputs.shape[:-2], 1, -1)
        loss = self.model.loss(result, outputs, labels)
        if self._penalty is not None:
            loss = loss + self._penalty()
        return loss

    def _loss_gradient(self, inputs: Any, labels: Tensor) -> Tensor:
        """Store the masked gradient in the module's buffer. Return the loss at the current weights w.

        Without SAM, the gradient is taken at w. With SAM, it is taken at w + rho g/||g||, where g is the gradient at w.
        The norm is over all trained coordinates (FedSAM, eq. 4). The sign() in the paper's eq. 3 is omitted, because no
        later equation has it.
        """
        w, g = self.model.weights, self.model.gradient
        if not self.settings.sam_rho:
            return self._plain_gradient(inputs, labels)
        unperturbed = w.clone()
        generator = _dropout_generator(w.device)
        drawn = generator.get_state()
        # A module may change its inputs in place, and the second pass needs them again.
        loss = self._plain_gradient(map_tree(Tensor.clone, inputs), labels)
        w.add_(g.mul_(self.settings.sam_rho / (gradient_norm(g) + EPSILON)))
        generator.set_state(drawn)
        self.model.backward(self.loss(inputs, labels))
        self._apply_mask(g)
        w.copy_(unperturbed)
        return loss

    def _plain_gradient(self, inputs: Any, labels: Tensor) -> Tensor:
        """Store the masked gradient at the current weights in the module's buffer. Return the loss."""
        loss = self.loss(inputs, labels)
        self.model.backward(loss)
        if self.squares is not None:
            self.squares.addcmul_(self.model.gradient, self.model.gradient)
        self._apply_mask(self.model.gradient)
        return loss

    def _apply_mask(self, g: Tensor, piece: slice | EllipsisType = ...) -> Tensor:
        """Set values outside of the mask to 0 in place, and return the tensor."""
        if self._mask is None:
            return g
        return g.mul_(self._mask[piece])


def _dropout_generator(device: torch.device) -> torch.Generator:
    """Return the random generator that dropout uses on the device."""
    if device.type == "cuda":
        return torch.cuda.default_generators[device.index]
    return torch.default_generator
