"""The one local training loop: momentum SGD on a dense submodel held in one flat buffer."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from weakref import proxy

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedraa.local.adversary import Adversary
from fedraa.local.compress import Compressor
from fedraa.local.scale import scale_readers
from fedraa.local.solver import Solver
from fedraa.local.split import SplitBody
from fedraa.messages import Task, Update, Vector
from fedraa.models import set_scaler_rate
from fedraa.streams import generator, torch_seed
from fedraa.submodels import Traced, hollow, trainable, view

EPSILON = 1e-12  # guards divisions by a gradient norm
FULL_BATCH = 1024  # minibatch of the full-batch gradient: a matter of memory, not of the result
RESIDENT_BYTES = 2 * 2**30  # of shards that a trainer keeps on a GPU
BY_PIECE = 2**19  # numbers in a submodel, about what a core's cache holds, from which descent goes by parameter

Shard = tuple[Tensor, Tensor]
Take = Callable[[slice, Tensor], None]


class Body:
    """A dense submodel whose parameters are views of the buffer `weights` [k], ready to be loaded.

    So are their gradients of `gradient` [k]. Without it the backward pass hands each parameter's gradient on as soon
    as it is there, and keeps none.
    """

    def __init__(self, module: nn.Module, weights: Tensor, gradient: Tensor | None) -> None:
        self.module, self.weights, self._gradient = module, weights, gradient
        self._waiting: dict[nn.Parameter, slice] = {}
        self._take: Take | None = None
        self._pieces: dict[nn.Parameter, slice] = {}
        body, start = proxy(self), 0  # no cycle: a body's buffers go when it goes
        for parameter in trainable(module.to(weights.device).train()):
            piece = slice(start, start + parameter.numel())
            parameter.data = weights[piece].view(parameter.shape)
            if gradient is not None:
                parameter.grad = gradient[piece].view(parameter.shape)
            else:
                parameter.register_post_accumulate_grad_hook(lambda trained: body.hand_on(trained))  # type: ignore[no-untyped-call]
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
        if self.weights.is_cpu:
            np.copyto(self.weights.numpy(), params)
        else:
            self.weights.copy_(torch.tensor(params))

    def backward(self, loss: Tensor) -> None:
        """Leaves the gradient of the loss in `gradient`."""
        self.gradient.zero_()
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves Tensor.backward untyped

    def backward_by_piece(self, loss: Tensor, take: Take) -> None:
        """Hands the gradient of the loss to `take`, for each parameter once, flat and with its piece of the buffer.

        By then nothing that the backward pass still needs depends on the parameter: `take` may change it.
        """
        self._waiting, self._take = dict(self._pieces), take
        loss.backward()  # type: ignore[no-untyped-call]
        for piece in self._waiting.values():  # of parameters that the loss does not depend on
            take(piece, torch.zeros_like(self.weights[piece]))
        self._take = None

    def hand_on(self, parameter: nn.Parameter) -> None:
        """The parameter's gradient is there."""
        assert parameter.grad is not None
        assert self._take is not None
        self._take(self._waiting.pop(parameter), parameter.grad.view(-1))
        parameter.grad = None


class Trainer:
    """Trains tasks one after another; holds no client's state, only one module per submodel shape.

    The weights of all these modules are in one buffer, their gradients in another, as large as the largest needs.

    A result depends on the task, the shard and the seed alone, never on what was trained before: optimiser
    buffers start at zero for each task, minibatches and dropout are drawn from (seed, client, turn).

    On a GPU whole shards are kept on the device, those used last, up to `resident_bytes` (None: `RESIDENT_BYTES` on a
    GPU, 0 elsewhere): then a client must always come with the same shard. With `bf16` the forward pass is computed in
    bfloat16 where torch's autocast allows it; weights, gradients and updates stay float32.
    """

    def __init__(
        self,
        traced: Traced,
        solver: Solver,
        *,
        seed: int,
        device: str = "cpu",
        fragment_scale: bool = False,
        bf16: bool = False,
        resident_bytes: int | None = None,
    ) -> None:
        self._traced = traced
        self._solver = solver
        self._seed = seed
        self._device = torch.device(device)
        self._fragment_scale = fragment_scale
        self._bf16 = bf16
        self._bodies: dict[tuple[int, ...], Body] = {}
        self._weights = self._gradient = torch.empty(0, device=self._device)
        if resident_bytes is None:
            resident_bytes = RESIDENT_BYTES if self._device.type == "cuda" else 0
        self._resident_bytes, self._held = resident_bytes, 0
        self._resident: OrderedDict[int, Shard] = OrderedDict()

    def train(self, task: Task, x: npt.NDArray[np.generic], y: npt.NDArray[np.int64]) -> Update:
        """Train the task's submodel on the client's shard x [n, ...], y [n]."""
        started = time.perf_counter()
        self._seed_dropout(task)
        body = self._body(task.widths)
        descent = Descent(self._solver, body, task, y, self._device, bf16=self._bf16)
        extras: dict[str, Tensor] = {}
        if self._solver.full_gradient:
            extras["gradient"] = self._full_gradient(descent, x, y)
        if self._solver.adversary:
            descent.adversary = Adversary(self._tensor(task.extras["adversary"]), torch.Size(x.shape[1:]))
        total = torch.zeros((), device=self._device)
        steps = 0
        for inputs, labels in self._minibatches(task, x, y):
            total += descent.step(inputs, labels)
            steps += 1
        descent.compress()
        if descent.squares is not None:
            extras["squares"] = descent.squares
        if descent.adversary is not None:
            extras["adversary"] = descent.adversary.state.detach()
        del descent  # its buffers, before the weights are copied
        return Update(
            task=task.id,
            client=task.client,
            fragment=task.fragment,
            version=task.version,
            params=body.weights.cpu().numpy().copy(),
            steps=steps,
            loss=float(total) / steps,
            seconds=time.perf_counter() - started,
            extras={name: tensor.cpu().numpy() for name, tensor in extras.items()},
        )

    def _seed_dropout(self, task: Task) -> None:
        """Seeds the one generator that is drawn from: torch.manual_seed asks for a traceback per kind of device."""
        seed = torch_seed(self._seed, "dropout", task.client, task.turn)
        if self._device.type == "cuda":
            torch.cuda.manual_seed(seed)
        else:
            torch.default_generator.manual_seed(seed)

    def _full_gradient(self, descent: "Descent", x: npt.NDArray[np.generic], y: npt.NDArray[np.int64]) -> Tensor:
        """The gradient of the mean loss over the whole shard, with weight decay, at the received weights [k]."""
        total = torch.zeros_like(descent.body.weights)
        for start in range(0, len(y), FULL_BATCH):
            rows = np.arange(start, min(start + FULL_BATCH, len(y)))
            inputs, labels = self._batch(x, y, rows)
            descent.body.backward(descent.loss(inputs, labels))
            total.add_(descent.body.gradient, alpha=len(rows) / len(y))
        return total.add_(descent.body.weights, alpha=self._solver.weight_decay)

    def _minibatches(
        self, task: Task, x: npt.NDArray[np.generic], y: npt.NDArray[np.int64]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Minibatches of a new permutation per epoch; the last of an epoch may be smaller."""
        rng = generator(self._seed, "batches", task.client, task.turn)
        size, left = self._solver.batch_size, self._solver.batches(len(y))
        shard = self._on_device(task.client, x, y)
        while left > 0:
            order = rng.permutation(len(y))
            rows = None if shard is None else self._tensor(order)
            for start in range(0, len(y), size)[:left]:
                if shard is None or rows is None:
                    yield self._batch(x, y, order[start : start + size])
                else:
                    chosen = rows[start : start + size]
                    yield shard[0].index_select(0, chosen), shard[1].index_select(0, chosen)
            left -= -(-len(y) // size)

    def _on_device(self, client: int, x: npt.NDArray[np.generic], y: npt.NDArray[np.int64]) -> Shard | None:
        """The client's shard on the device; None if it is not kept there. The longest unused make room."""
        size = x.nbytes + y.nbytes
        if client in self._resident:
            self._resident.move_to_end(client)
        elif size > self._resident_bytes:
            return None
        else:
            while self._held + size > self._resident_bytes:
                _, dropped = self._resident.popitem(last=False)
                self._held -= sum(tensor.nbytes for tensor in dropped)
            # torch.tensor copies: on a CPU a view of the object store would be kept alive
            self._resident[client] = (torch.tensor(x, device=self._device), torch.tensor(y, device=self._device))
            self._held += size
        return self._resident[client]

    def _batch(
        self, x: npt.NDArray[np.generic], y: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]
    ) -> tuple[Tensor, Tensor]:
        return self._tensor(x.take(rows, axis=0)), self._tensor(y.take(rows))

    def _tensor(self, array: npt.NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(self._device)

    def _body(self, widths: tuple[int, ...]) -> Body:
        if widths not in self._bodies:
            module = self._traced.skeleton(widths)
            hollow(module)
            set_scaler_rate(module, rate(self._traced, widths))
            if self._fragment_scale:
                scale_readers(module, self._traced, widths)
            if self._solver.split:
                module = SplitBody(module, self._solver.split)
            size = sum(parameter.numel() for parameter in trainable(module))
            held = 0 if size >= BY_PIECE and not self._solver.needs_whole_gradient else size
            sizes = max(size, len(self._weights)), max(held, len(self._gradient))
            if sizes != (len(self._weights), len(self._gradient)):
                self._bodies.clear()  # the old buffers go before the new come
                self._weights = self._gradient = torch.empty(0)
                self._weights, self._gradient = (torch.empty(length, device=self._device) for length in sizes)
            self._bodies[widths] = Body(module, self._weights[:size], self._gradient[:size] if held else None)
        return self._bodies[widths]


def rate(traced: Traced, widths: tuple[int, ...]) -> float:
    """The width share of a cut: mean over the groups, as HeteroFL's model rate where all are cut alike."""
    shares = [kept / group.size for kept, group in zip(widths, traced.groups, strict=True)]
    return sum(shares) / len(shares) if shares else 1.0


class Descent:
    """The steps of one task: the solver's terms in the order that Solver states."""

    def __init__(
        self,
        solver: Solver,
        body: Body,
        task: Task,
        y: npt.NDArray[np.int64],
        device: torch.device,
        *,
        bf16: bool = False,
    ) -> None:
        def tensor(array: npt.NDArray[np.generic]) -> Tensor:
            return torch.tensor(array, device=device)

        self.body = body
        self.adversary: Adversary | None = None
        self._solver, self._lr, self._bf16 = solver, task.lr, bf16
        self._unperturbed = torch.empty_like(body.weights) if solver.sam else body.weights
        self._compressor = Compressor.parse(solver.compress)
        self._mask = None if task.mask is None else tensor(task.mask).to(torch.float32)
        body.load(task.params)
        self._masked(body.weights)
        self._anchor = body.weights
        if solver.proximal or self._compressor.kind != "none":
            self._anchor = body.weights.clone() if self._mask is not None else view(task.params).to(device)
        self._velocity = torch.zeros_like(body.weights) if solver.momentum else None
        self._control = tensor(task.extras["control"]) if solver.control else None
        self._drift = tensor(task.extras["momentum"]) if "momentum" in task.extras else None
        self.squares = torch.zeros_like(body.weights) if solver.squares else None
        self._labels = torch.from_numpy(np.unique(y)).to(device) if solver.label_masked else None

    def compress(self) -> None:
        """What arrives is the received weights plus the decoded gain on the trained coordinates."""
        if self._compressor.kind == "none":
            return
        w, anchor = self.body.weights, self._anchor
        if self._mask is None:
            w.copy_(anchor + self._compressor.apply(w - anchor))
        else:
            trained = self._mask > 0
            w[trained] = anchor[trained] + self._compressor.apply((w - anchor)[trained])

    def step(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """One step on a minibatch; returns its loss at the weights before the step."""
        if self.adversary is not None:
            self.adversary.ascend(self.loss(self.adversary.perturb(inputs), labels) * len(labels))
            inputs = self.adversary.perturb(inputs).detach()
        if self.body.whole:
            loss = self._loss_gradient(inputs, labels)
            self._descend(slice(None), self.body.gradient)
        else:
            loss = self.loss(inputs, labels)
            self.body.backward_by_piece(loss, lambda piece, g: self._descend(piece, self._masked(g, piece)))
        return loss.detach()

    def _descend(self, piece: slice, g: Tensor) -> None:
        """Takes the step on one piece of the buffer, given its masked gradient, which it uses up."""
        solver, w = self._solver, self.body.weights[piece]
        if solver.proximal:
            g.add_(w, alpha=solver.proximal).sub_(self._anchor[piece], alpha=solver.proximal)
        if self._control is not None:
            self._masked(g.add_(self._control[piece]), piece)
        if self._drift is not None:
            self._masked(g.mul_(solver.fresh).add_(self._drift[piece], alpha=1 - solver.fresh), piece)
        if solver.clip:
            g.mul_(torch.clamp(solver.clip / (torch.linalg.vector_norm(g) + EPSILON), max=1.0))
        if solver.weight_decay:
            g.add_(w, alpha=solver.fresh * solver.weight_decay)
        if self._velocity is None:
            w.sub_(g, alpha=self._lr)
        else:
            w.sub_(self._velocity[piece].mul_(solver.momentum).add_(g), alpha=self._lr)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Mean cross-entropy; with `label_masked`, logits of labels that the client lacks are set to 0."""
        if self._bf16:
            with torch.autocast(inputs.device.type, torch.bfloat16):
                logits = self.body.module(inputs).float()
        else:
            logits = self.body.module(inputs)
        if self._labels is not None:
            held = torch.zeros_like(logits[0]).index_fill_(0, self._labels, 1.0)
            logits = logits * held
        return F.cross_entropy(logits, labels)

    def _loss_gradient(self, inputs: Tensor, labels: Tensor) -> Tensor:
        """Leaves the masked (SAM) gradient in the body; returns the loss at the unperturbed weights.

        SAM: the gradient at w + rho g/||g||, one norm over all trained coordinates of the client (FedSAM
        eq. 4; the sign() factor of its eq. 3 is in no later equation), same minibatch for both passes.
        """
        w, g = self.body.weights, self.body.gradient
        loss = self.loss(inputs, labels)
        self.body.backward(loss)
        if self.squares is not None:
            self.squares.addcmul_(g, g)
        self._masked(g)
        if self._solver.sam:
            self._unperturbed.copy_(w)
            w.add_(g.mul_(self._solver.sam / (torch.linalg.vector_norm(g) + EPSILON)))
            self.body.backward(self.loss(inputs, labels))
            self._masked(g)
            w.copy_(self._unperturbed)
        return loss

    def _masked(self, g: Tensor, piece: slice = slice(None)) -> Tensor:
        return g if self._mask is None else g.mul_(self._mask[piece])
