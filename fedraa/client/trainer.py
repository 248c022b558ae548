"""The trainer of a worker, which trains the tasks of clients on dense submodels."""

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
from fedraa.client.flat_module import FlatModule, mask_merged
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
from fedraa.messages import Mask, Task, Update
from fedraa.models import set_scaler_rate
from fedraa.models.exits import limit_depth
from fedraa.models.statistics import settle_spectral
from fedraa.rng import generator, torch_seed
from fedraa.submodels import Traced, drop_weights, trainable_parameters
from fedraa.submodels.flat import copy_to_numpy, is_by_piece
from fedraa.submodels.personal_layers import find_personal, personal_mask
from fedraa.submodels.tracing.modes import WithoutDropout

# The gradient over all samples is computed in batches of this size, to save memory.
FULL_BATCH = 1024
# Maximum bytes of clients' data that a trainer keeps on a GPU.
RESIDENT_BYTES = 2 * 2**30

Shard = tuple[Any, Tensor]


class Work(NamedTuple):
    """A task with the data of its client.

    Attributes:
        task: The task.
        x: Inputs [n, ...].
        y: Targets [n, ...].
        read_epoch: A function of the number of an epoch. It returns the inputs and targets of this epoch. None if all
            epochs have the same samples. `x` and `y` belong to epoch 0.
    """

    task: Task
    x: Tree
    y: npt.NDArray[Any]
    read_epoch: ReadEpoch | None = None


class Trainer:
    """A trainer of tasks, one after another.

    A result depends only on the task, the data and the seed, never on earlier tasks. The trainer stores no state of
    clients: the optimizer's state starts at zero or comes with the task. Random numbers depend on the seed, the client,
    and the number of the client's task or of its pass over the data.

    The trainer keeps one module per submodel shape. All modules share one buffer of weights and one of gradients.

    Args:
        traced: The traced model.
        local: The settings of local training.
        seed: The seed of the run.
        device: The device, such as `cpu` or `cuda`.
        bf16: True to compute the forward pass in bfloat16 where PyTorch's autocast allows it. Weights, gradients and
            updates stay float32.
        resident_bytes: Maximum bytes of clients' data that stay on the device. None means `RESIDENT_BYTES` on a GPU,
            otherwise 0. The data of a client must not change during the run.
        transforms: The random changes of samples before training.
        model: The settings of the modules.
    """

    def __init__(
        self,
        traced: Traced,
        local: LocalTraining,
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
        self._local = local
        self._target_cosine = target_cosine(local.lr_schedule)
        self._components = StepComponents.of(local, self._settings.label_shares)
        self._seed = seed
        self._bf16 = bf16
        self._transforms = transforms or Transforms()
        self._models: dict[tuple[int, ...], FlatModule] = {}
        self._personal_names = find_personal(traced, local.personal_layers)
        self._personal_masks: dict[tuple[int, ...], Mask] = {}
        self._weights = self._gradient = torch.empty(0, device=self._device)
        if resident_bytes is None:
            resident_bytes = RESIDENT_BYTES if self._device.type == "cuda" else 0
        self._resident_bytes = resident_bytes
        self._held = 0
        self._resident: OrderedDict[int, Shard] = OrderedDict()

    def train(self, task: Task, x: Tree, y: npt.NDArray[Any], read_epoch: ReadEpoch | None = None) -> Update:
        """Train the task's submodel on the client's data. `Work` documents the arguments."""
        started = time.perf_counter()
        self._refuse_too_few_samples(len(y))
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
        task = mask_merged(task, model)
        self._seed_dropout(task)
        length = self._count_steps(task, len(y))
        local_step = LocalStep(
            self._local, self._components, model, task, [y], self._device, steps=length, bf16=self._bf16
        )
        if self._state.changes:
            settle_spectral(model.module)
        extras: dict[str, Tensor] = {}
        if self._local.full_gradient:
            extras["gradient"] = self._full_gradient(local_step, x, y)
        if self._local.adversary:
            local_step.adversary = Adversary(self._to_tensor(task.extra_values(ADVERSARY_KEY)), torch.Size(x.shape[1:]))
        algorithm = self._local.algorithm
        minibatches = partial(self._iter_minibatches, Work(task, x, y, read_epoch))
        kept = {buffer.name: task.extra_values(buffer.key) for buffer in algorithm.kept}
        mask = None if personal is None else self._to_tensor(personal)
        run = TaskRun(local_step, minibatches, kept, mask)
        # A task of one step has no halves.
        if self._target_cosine is not None and length > 1:
            run.halfway = HalfwayCosine([length], self._target_cosine, model.module)
        run.train_with(algorithm)
        cosine = None
        if run.halfway is not None:
            cosine = run.halfway.compute(run.before_steps, run.weights, embeddings=local_step.embeddings)
        extras |= self._finish_update(local_step, task, personal=mask)
        if local_step.adversary is not None:
            extras[ADVERSARY_KEY] = local_step.adversary.state.detach()
        extras |= {buffer.key: run.state[buffer.name] for buffer in algorithm.kept}
        extras |= run.reply
        total, steps = run.total, run.steps
        # Deleting these objects frees memory before the weights are copied.
        del run, local_step
        params = copy_to_numpy(model.weights)
        arrays = {name: tensor.cpu().numpy() for name, tensor in extras.items()}
        if personal is not None:
            # The update returns personal layers as received, so that these layers of the global model do not change.
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
        """Train several tasks in order."""
        return [self.train(*one) for one in work]

    def _finish_update(
        self, local_step: LocalStep, task: Task, row: int | EllipsisType = ..., personal: Tensor | None = None
    ) -> dict[str, Tensor]:
        """Replace the trained weights by the weights that the server computes from the compressed delta.

        Return the other results of the local steps, by name in the update: the new values of error feedback, the
        squared gradients and the state of the optimizer. A result is absent if the run does not need it.

        Args:
            local_step: The local steps of the task.
            task: The task.
            row: The row of the task if the buffers hold several tasks; `...` for a single task.
            personal: A mask [k] of coordinates that the client does not send; None if it sends all.
        """
        extras: dict[str, Tensor] = {}
        if not self._components.compressor.lossless:
            if self._local.error_feedback != "none":
                extras[FEEDBACK.key] = torch.tensor(task.extra_values(FEEDBACK.key), device=self._device)
            rng = generator(self._seed, "compress", task.client, task.turn)
            local_step.compress(rng, row, personal, extras.get(FEEDBACK.key))
        if local_step.squares is not None:
            extras["squares"] = local_step.squares[row]
        return extras | local_step.optimizer_state(row)

    def reset(self) -> None:
        """Delete all modules and buffers, because an exception may have left a partial gradient in them."""
        self._models.clear()
        self._weights = self._gradient = torch.empty(0, device=self._device)

    def _refuse_too_few_samples(self, samples: int) -> None:
        if samples < self._local.min_batch:
            problem = f"it has {samples} sample, but the model needs batches of at least {self._local.min_batch}"
            raise InputError("client", problem)

    def _seed_dropout(self, task: Task) -> None:
        """Seed dropout on the trainer's device.

        torch.manual_seed would be slow: it creates a traceback for every kind of device.
        """
        seed = torch_seed(self._seed, "dropout", task.client, task.turn)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)

    def _full_gradient(self, local_step: LocalStep, x: Tree, y: npt.NDArray[Any]) -> Tensor:
        """Return weight_decay * w + the gradient [k] of the mean loss over all samples, at the received weights w."""
        total = torch.zeros_like(local_step.model.weights)
        for rows in self._split_full_batch(len(y)):
            inputs, labels = self._make_batch(x, y, rows)
            with WithoutDropout():
                loss = local_step.loss(inputs, labels)
            local_step.model.backward(loss)
            total.add_(local_step.model.gradient, alpha=len(rows) / len(y))
        return total.add_(local_step.model.weights, alpha=self._local.weight_decay)

    def _split_full_batch(self, samples: int) -> list[npt.NDArray[np.int64]]:
        parts = replace(self._local, batch_size=FULL_BATCH)
        return [np.arange(span.start, span.stop) for span in parts.spans(samples)]

    def _iter_minibatches(self, work: Work, stream: str, epochs: int | None) -> Iterator[Shard]:
        """Yield the minibatches of a task, changed by the random transforms of samples.

        Args:
            work: The task and its data.
            stream: The name of a random order of the samples.
            epochs: Number of passes over the data; None to take the task's number of local steps.
        """
        augment = self._transforms.make_augmentation(work.task.client, work.task.turn)
        for inputs, labels in self._iter_samples(work, stream, epochs):
            yield augment(inputs), labels

    def _iter_samples(self, work: Work, stream: str, epochs: int | None) -> Iterator[Shard]:
        """Yield the minibatches of a task without the random transforms of samples.

        `_iter_minibatches` documents the arguments.
        """
        task, x, y, read_epoch = work
        shard = None
        if read_epoch is None:
            shard = self._cache_on_device(task.client, x, y)
        for epoch, batches in enumerate(self._iter_epochs(task, len(y), stream, epochs)):
            if epoch and read_epoch is not None:
                x, y = read_epoch(epoch)
            if shard is None:
                yield from (self._make_batch(x, y, order) for order in batches)
            else:
                rows = self._to_tensor(np.concatenate(batches))
                for chosen in torch.split(rows, [len(order) for order in batches]):
                    yield _select_rows(shard[0], chosen), _select_rows(shard[1], chosen)

    def _iter_epochs(
        self, task: Task, samples: int, stream: str = "", epochs: int | None = None
    ) -> Iterator[list[npt.NDArray[np.int64]]]:
        """Yield, for each epoch, the positions of the samples of every minibatch, in a new random order.

        `_iter_minibatches` documents `stream` and `epochs`.
        """
        orders, skipped = self._iter_orders(task, samples, stream)
        left = self._count_steps(task, samples)
        if epochs is not None:
            left = epochs * self._local.count_minibatches(samples)
            skipped = 0
        spans = self._local.spans(samples)
        while left > 0:
            order = next(orders)
            chosen = spans[skipped : skipped + left]
            yield [order[span] for span in chosen]
            left -= len(chosen)
            skipped = 0

    def _count_steps(self, task: Task, samples: int) -> int:
        if task.cut_at is not None:
            return task.cut_at
        if task.steps is not None:
            return task.steps
        return self._local.count_steps(samples)

    def _iter_orders(self, task: Task, samples: int, stream: str) -> tuple[Iterator[npt.NDArray[np.int64]], int]:
        """Return an iterator over the order of the samples in each pass, and the number of the task's first minibatch.

        This number is not 0 if the task continues a pass of the client's previous task.
        """
        name = f" of {stream}" if stream else ""
        if task.steps is None:
            rng = generator(self._seed, f"batches{name}", task.client, task.turn)
            return (rng.permutation(samples) for _ in count()), 0
        number, skipped = divmod(task.first, self._local.count_minibatches(samples))
        passes = (generator(self._seed, f"passes{name}", task.client, at) for at in count(number))
        return (rng.permutation(samples) for rng in passes), skipped

    def _cache_on_device(self, client: int, x: Tree, y: npt.NDArray[Any]) -> Shard | None:
        """Return the client's data on the device, or None if they exceed `resident_bytes`.

        To make room, the least recently used data of other clients are removed from the device.
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
            # torch.tensor copies. On a CPU, a view would keep memory of Ray's object store in use.
            inputs = map_tree(lambda array: torch.tensor(array, device=self._device), x)
            self._resident[client] = (inputs, torch.tensor(y, device=self._device))
            self._held += taken
        return self._resident[client]

    def _make_batch(self, x: Tree, y: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> Shard:
        inputs = map_tree(lambda array: self._to_tensor(array.take(rows, axis=0)), x)
        return inputs, self._to_tensor(y.take(rows, axis=0))

    def _to_tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        tensor = torch.from_numpy(array)
        return tensor if self._device.type == "cpu" else tensor.to(self._device)

    def _make_module(self, widths: tuple[int, ...]) -> nn.Module:
        """Return a module for submodels of this shape, with weights that are not allocated yet."""
        module = self._traced.make_skeleton(widths)
        drop_weights(module)
        set_scaler_rate(module, self._traced.mean_width_share(widths))
        if self._settings.fragment_scale:
            scale_readers(module, self._traced, widths, inner=self._settings.scale_inner)
        if self._local.split:
            return SplitBody(module, self._local.split)
        return module

    def _model(self, widths: tuple[int, ...]) -> FlatModule:
        if widths not in self._models:
            module = self._make_module(widths)
            length = sum(parameter.numel() for parameter in trainable_parameters(module))
            by_piece = (
                is_by_piece(length, self._device) and self._traced.by_piece and not self._local.needs_whole_gradient
            )
            self._reserve_buffers(length, 0 if by_piece else length)
            gradient = None if by_piece else self._gradient[:length]
            self._models[widths] = FlatModule(module, self._weights[:length], gradient, self._settings.objective)
        return self._models[widths]

    def _personal_mask(self, widths: tuple[int, ...]) -> Mask | None:
        """Return the mask [k] of the coordinates of personal layers, or None without personal layers."""
        if not self._personal_names:
            return None
        if widths not in self._personal_masks:
            module = self._model(widths).module
            self._personal_masks[widths] = personal_mask(self._traced, self._personal_names, module)
        return self._personal_masks[widths]

    def _reserve_buffers(self, weights: int, gradient: int) -> None:
        """Give the shared buffers at least `weights` and `gradient` elements.

        If a buffer must grow, delete all modules, because they use the old buffers.
        """
        weights = max(weights, len(self._weights))
        gradient = max(gradient, len(self._gradient))
        if (weights, gradient) != (len(self._weights), len(self._gradient)):
            # Free the old buffers first, so that old and new buffers are never in memory at the same time.
            self._models.clear()
            self._weights = self._gradient = torch.empty(0)
            self._weights = torch.empty(weights, device=self._device)
            self._gradient = torch.empty(gradient, device=self._device)


def _select_rows(inputs: Tree, chosen: Tensor) -> Tree:
    return map_tree(lambda tensor: tensor.index_select(0, chosen), inputs)
