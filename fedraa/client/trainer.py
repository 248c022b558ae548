"""The local training loop: steps of a local optimizer on a dense submodel in one flat buffer."""

import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from types import EllipsisType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from fedraa.client.activation_scale import scale_readers
from fedraa.client.error_feedback import FEEDBACK
from fedraa.client.flat_module import FlatModule
from fedraa.client.halfway_cosine import HalfwayCosine
from fedraa.client.input_adversary import ADVERSARY_KEY, Adversary
from fedraa.client.kept_buffer import PERSONAL_LAYERS
from fedraa.client.local_step import LocalStep, StepComponents
from fedraa.client.local_training import LocalTraining
from fedraa.client.lr_schedule import target_cosine
from fedraa.client.model_settings import ModelSettings
from fedraa.client.split import SplitBody
from fedraa.client.task_run import TaskRun
from fedraa.data import Transforms
from fedraa.data.sources.clients import ReadEpoch
from fedraa.data.tree import Tree, count_bytes, map_tree
from fedraa.errors import InputError
from fedraa.messages import Task, Update
from fedraa.models import set_scaler_rate
from fedraa.models.exits import limit_depth
from fedraa.models.statistics import settle_spectral
from fedraa.rng import generator, torch_seed
from fedraa.submodels import Traced, drop_weights, trainable_parameters
from fedraa.submodels.flat import BY_PIECE
from fedraa.submodels.personal_layers import find_personal, personal_mask
from fedraa.submodels.tracing.modes import WithoutDropout

# Minibatch size of the full-batch gradient. It affects memory, not the result.
FULL_BATCH = 1024
# Bytes of client data that a trainer keeps on a GPU.
RESIDENT_BYTES = 2 * 2**30

Shard = tuple[Any, Tensor]
Mask = npt.NDArray[np.bool_]


class Work(NamedTuple):
    """A task with the client's data: inputs x [n, ...] and targets y [n, ...].

    If samples are drawn at random, `read_epoch` reads the samples of the second and later epochs.
    """

    task: Task
    x: Tree
    y: npt.NDArray[Any]
    read_epoch: ReadEpoch | None = None


class Trainer:
    """Trains tasks one after another. It keeps no client's state, only one module per submodel shape.

    The weights of all these modules share one buffer, and their gradients another, each as large as the largest needs.

    A result depends only on the task, the data and the seed, never on earlier tasks. The optimizer's state is zero at
    the start of each task or comes with the task. Minibatches and dropout are drawn from (seed, client, turn). If
    passes continue over a client's tasks, minibatches are drawn from (seed, client, pass).

    On a GPU the most recently used clients' data stays on the device, up to `resident_bytes` (None: `RESIDENT_BYTES` on
    a GPU, 0 elsewhere). This requires that a client always has the same data. With `bf16` the forward pass is computed
    in bfloat16 if torch's autocast allows it. Weights, gradients and updates stay float32.

    A model that changes its `state` in training is created again for each task from the initial model. Therefore no
    task is affected by the changes of an earlier one.
    """

    def __init__(
        self,
        traced: Traced,
        solver: LocalTraining,
        *,
        seed: int,
        device: str = "cpu",
        bf16: bool = False,
        resident_bytes: int | None = None,
        transforms: Transforms | None = None,
        model: ModelSettings | None = None,
    ) -> None:
        self._device = torch.device(device)
        self._traced = traced if self._device.type == "cpu" else traced.on(self._device)
        self._settings = model or ModelSettings()
        self._state = self._settings.state
        self._solver = solver
        self._is_adaptive = target_cosine(solver.lr_schedule) is not None
        self._components = StepComponents.of(solver, self._settings.label_shares)
        self._seed = seed
        self._bf16 = bf16
        self._transforms = transforms or Transforms()
        self._models: dict[tuple[int, ...], FlatModule] = {}
        self._personal_names = find_personal(traced, solver.personal_layers)
        self._personal_masks: dict[tuple[int, ...], Mask] = {}
        self._weights = self._gradient = torch.empty(0, device=self._device)
        if resident_bytes is None:
            resident_bytes = RESIDENT_BYTES if self._device.type == "cuda" else 0
        self._resident_bytes = resident_bytes
        self._held = 0
        self._resident: OrderedDict[int, Shard] = OrderedDict()

    def train(self, task: Task, x: Tree, y: npt.NDArray[Any], read_epoch: ReadEpoch | None = None) -> Update:
        """Train the task's submodel on the client's data.

        Args:
            task: The task.
            x: Inputs [n, ...].
            y: Targets [n, ...].
            read_epoch: Reads the randomly generated samples of later epochs.
        """
        started = time.perf_counter()
        self._refuse_small(len(y))
        if self._state.changes:
            self._models.clear()
        model = self._model(task.widths)
        limit_depth(model.module, None if task.keeps_rest else task.mask)
        received = task.params
        personal = self._personal_mask(task.widths)
        if personal is not None:
            own = received.copy()
            own[personal] = task.extra_values(PERSONAL_LAYERS.key)
            task = replace(task, buffer=own)
        self._seed_dropout(task)
        length = self._steps(task, len(y))
        local_step = LocalStep(
            self._solver, self._components, model, task, [y], self._device, steps=length, bf16=self._bf16
        )
        if self._state.changes:
            settle_spectral(model.module)
        extras: dict[str, Tensor] = {}
        if self._solver.full_gradient:
            extras["gradient"] = self._full_gradient(local_step, x, y)
        if self._solver.adversary:
            local_step.adversary = Adversary(self._to_tensor(task.extra_values(ADVERSARY_KEY)), torch.Size(x.shape[1:]))
        algorithm = self._solver.algorithm
        minibatches = partial(self._iter_minibatches, Work(task, x, y, read_epoch))
        kept = {buffer.name: task.extra_values(buffer.key) for buffer in algorithm.kept}
        mask = None if personal is None else self._to_tensor(personal)
        run = TaskRun(local_step, minibatches, kept, mask)
        if self._is_adaptive:
            run.halfway = HalfwayCosine([length])
        algorithm.train(run)
        cosine = None
        if run.halfway is not None:
            cosine = run.halfway.compute(run.received, run.weights)
        extras |= self._compress_update(local_step, task, personal=mask)
        if local_step.squares is not None:
            extras["squares"] = local_step.squares
        if local_step.adversary is not None:
            extras[ADVERSARY_KEY] = local_step.adversary.state.detach()
        extras |= local_step.optimizer_state()
        extras |= {buffer.key: run.state[buffer.name] for buffer in algorithm.kept}
        extras |= run.reply
        total, steps = run.total, run.steps
        # Deleting these objects frees their buffers before the weights are copied.
        del run, local_step
        params = model.weights.cpu().numpy().copy()
        arrays = {name: tensor.cpu().numpy() for name, tensor in extras.items()}
        if personal is not None:
            # The server receives the values that it has sent.
            arrays[PERSONAL_LAYERS.key] = params[personal]
            params[personal] = received[personal]
        return Update(
            task=task.id,
            client=task.client,
            fragment=task.fragment,
            version=task.version,
            params=params,
            steps=steps,
            loss=float(total) / steps,
            seconds=time.perf_counter() - started,
            extras=arrays,
            cosine=cosine,
        )

    def train_all(self, work: Sequence[Work]) -> list[Update]:
        """Train all tasks in order."""
        return [self.train(*one) for one in work]

    def _compress_update(
        self, local_step: LocalStep, task: Task, row: int | EllipsisType = ..., personal: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Replace the task's trained weights by those that the server receives.

        Return the client's values of error feedback, as an extra buffer of the update if there are any.

        Args:
            local_step: The steps of the task.
            task: The task.
            row: Its row, if the buffers hold several tasks.
            personal: True for coordinates [k] that the client does not send.
        """
        if self._components.compressor.lossless:
            return {}
        extras: dict[str, Tensor] = {}
        if self._solver.error_feedback != "none":
            extras[FEEDBACK.key] = torch.tensor(task.extra_values(FEEDBACK.key), device=self._device)
        rng = generator(self._seed, "compress", task.client, task.turn)
        local_step.compress(rng, row, personal, extras.get(FEEDBACK.key))
        return extras

    def reset(self) -> None:
        """Delete all modules and buffers, because an exception may have left a partial gradient in them."""
        self._models.clear()
        self._weights = self._gradient = torch.empty(0, device=self._device)

    def _refuse_small(self, samples: int) -> None:
        """Raise InputError for a client with fewer samples than the smallest batch that the model can be trained on."""
        if samples < self._solver.min_batch:
            problem = f"it has {samples} sample, and the model needs batches of at least {self._solver.min_batch}"
            raise InputError("client", problem)

    def _seed_dropout(self, task: Task) -> None:
        """Seed the generator of the trainer's device.

        This is faster than torch.manual_seed, which makes a traceback per kind of device.
        """
        seed = torch_seed(self._seed, "dropout", task.client, task.turn)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)

    def _full_gradient(self, local_step: LocalStep, x: Tree, y: npt.NDArray[Any]) -> Tensor:
        """Return the full-batch gradient [k] of the mean loss, with weight decay, at the received weights.

        Dropout is off, so that the gradient is the same function of the weights in every turn.

        Args:
            local_step: The step with the loaded task.
            x: Inputs [n, ...].
            y: Targets [n, ...].
        """
        total = torch.zeros_like(local_step.model.weights)
        for rows in self._split_full_batch(len(y)):
            inputs, labels = self._make_batch(x, y, rows)
            with WithoutDropout():
                loss = local_step.loss(inputs, labels)
            local_step.model.backward(loss)
            total.add_(local_step.model.gradient, alpha=len(rows) / len(y))
        return total.add_(local_step.model.weights, alpha=self._solver.weight_decay)

    def _split_full_batch(self, samples: int) -> list[npt.NDArray[np.int64]]:
        """Return slices of `FULL_BATCH` rows that cover the data. The last slice may have fewer rows, or one more."""
        parts = replace(self._solver, batch_size=FULL_BATCH)
        return [np.arange(span.start, span.stop) for span in parts.spans(samples)]

    def _iter_minibatches(self, work: Work, stream: str = "", epochs: int | None = None) -> Iterator[Shard]:
        """Yield the task's minibatches after the random transforms, from the device if the client's data is there.

        Args:
            work: The task.
            stream: The name of a random order.
            epochs: Passes over the data. None: the length of the task.
        """
        augment = self._transforms.make_augmentation(work.task.client, work.task.turn)
        for inputs, labels in self._iter_samples(work, stream, epochs):
            yield augment(inputs), labels

    def _iter_samples(self, work: Work, stream: str, epochs: int | None) -> Iterator[Shard]:
        """Yield the task's minibatches before the random transforms. The arguments are those of `_iter_minibatches`."""
        task, x, y, read_epoch = work
        shard = None
        if read_epoch is None:
            shard = self._on_device(task.client, x, y)
        for epoch, batches in enumerate(self._epochs(task, len(y), stream, epochs)):
            if epoch and read_epoch is not None:
                x, y = read_epoch(epoch)
            if shard is None:
                yield from (self._make_batch(x, y, order) for order in batches)
            else:
                rows = self._to_tensor(np.concatenate(batches))
                for chosen in torch.split(rows, [len(order) for order in batches]):
                    yield _select_rows(shard[0], chosen), _select_rows(shard[1], chosen)

    def _epochs(
        self, task: Task, samples: int, stream: str = "", epochs: int | None = None
    ) -> Iterator[list[npt.NDArray[np.int64]]]:
        """Yield the samples of each minibatch, with a new permutation per epoch.

        The last minibatch may differ in size.
        """
        left = self._steps(task, samples)
        orders, skipped = self._iter_orders(task, samples, stream)
        if epochs is not None:
            left, skipped = epochs * self._solver.count_minibatches(samples), 0
        while left > 0:
            order = next(orders)
            spans = self._solver.spans(samples)[skipped : skipped + left]
            yield [order[span] for span in spans]
            left, skipped = left - len(spans), 0

    def _steps(self, task: Task, samples: int) -> int:
        """Return the number of local steps of a task on a client with this number of samples."""
        if task.cut_at is not None:
            return task.cut_at
        if task.steps is not None:
            return task.steps
        return self._solver.count_steps(samples)

    def _iter_orders(self, task: Task, samples: int, stream: str = "") -> tuple[Iterator[npt.NDArray[np.int64]], int]:
        """Return an iterator over one permutation per pass, and the number of minibatches to skip in the first pass."""
        name = f" of {stream}" if stream else ""
        if task.steps is None:
            rng = generator(self._seed, f"batches{name}", task.client, task.turn)
            return (rng.permutation(samples) for _ in count()), 0
        number, skipped = divmod(task.first, self._solver.count_minibatches(samples))
        passes = (generator(self._seed, f"passes{name}", task.client, at) for at in count(number))
        return (rng.permutation(samples) for rng in passes), skipped

    def _on_device(self, client: int, x: Tree, y: npt.NDArray[Any]) -> Shard | None:
        """Return the client's data on the device, or None if the data exceeds the limit `resident_bytes`.

        If the limit is reached, the least recently used data is removed.

        Args:
            client: The client.
            x: Inputs [n, ...].
            y: Targets [n, ...].
        """
        taken = count_bytes(x) + y.nbytes
        if client in self._resident:
            self._resident.move_to_end(client)
        elif taken > self._resident_bytes:
            return None
        else:
            while self._held + taken > self._resident_bytes:
                _, dropped = self._resident.popitem(last=False)
                self._held -= count_bytes(dropped)
            # torch.tensor copies. On a CPU a view would keep the object store's memory alive.
            inputs = map_tree(lambda array: torch.tensor(array, device=self._device), x)
            self._resident[client] = (inputs, torch.tensor(y, device=self._device))
            self._held += taken
        return self._resident[client]

    def _make_batch(self, x: Tree, y: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> Shard:
        return map_tree(lambda array: self._to_tensor(array.take(rows, axis=0)), x), self._to_tensor(
            y.take(rows, axis=0)
        )

    def _to_tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _module(self, widths: tuple[int, ...]) -> nn.Module:
        """Return the module for a submodel of this shape, without weights."""
        module = self._traced.make_skeleton(widths)
        drop_weights(module)
        set_scaler_rate(module, self._traced.mean_width_share(widths))
        if self._settings.fragment_scale:
            scale_readers(module, self._traced, widths, inner=self._settings.scale_inner)
        if self._solver.split:
            return SplitBody(module, self._solver.split)
        return module

    def _model(self, widths: tuple[int, ...]) -> FlatModule:
        if widths not in self._models:
            module = self._module(widths)
            length = sum(parameter.numel() for parameter in trainable_parameters(module))
            by_piece = length >= BY_PIECE and self._traced.by_piece and not self._solver.needs_whole_gradient
            self._reserve_buffers(length, 0 if by_piece else length)
            gradient = None if by_piece else self._gradient[:length]
            self._models[widths] = FlatModule(module, self._weights[:length], gradient, self._settings.objective)
        return self._models[widths]

    def _personal_mask(self, widths: tuple[int, ...]) -> Mask | None:
        """Return True for the coordinates of personal layers in a submodel [k], or None without such layers."""
        if not self._personal_names:
            return None
        if widths not in self._personal_masks:
            module = self._model(widths).module
            self._personal_masks[widths] = personal_mask(self._traced, self._personal_names, module)
        return self._personal_masks[widths]

    def _reserve_buffers(self, weights: int, gradient: int) -> None:
        """Make the shared buffers of weights and gradients at least this long. New buffers delete all modules."""
        weights = max(weights, len(self._weights))
        gradient = max(gradient, len(self._gradient))
        if (weights, gradient) != (len(self._weights), len(self._gradient)):
            # The old buffers are freed before the new ones are allocated.
            self._models.clear()
            self._weights = self._gradient = torch.empty(0)
            self._weights = torch.empty(weights, device=self._device)
            self._gradient = torch.empty(gradient, device=self._device)


def _select_rows(inputs: Tree, chosen: Tensor) -> Tree:
    return map_tree(lambda tensor: tensor.index_select(0, chosen), inputs)
