"""Measurement of the cost of training a submodel, in one real training step."""

from __future__ import annotations

import logging
import math
import sys
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from fedraa.data.tree import Tree, list_leaves, map_tree
from fedraa.errors import InputError
from fedraa.models.forward import forward
from fedraa.submodels.cost import Cost
from fedraa.submodels.flat import layer_of, trainable_parameters
from fedraa.submodels.traced import IndexSet, Traced
from fedraa.submodels.tracing.accept import short_line
from fedraa.submodels.tracing.recorder import iterate_tensors


@contextmanager
def _without_triton() -> Iterator[None]:
    """Make imports of Triton fail in this block if Triton is not loaded yet.

    The FLOP formulas of torch import Triton without using it. Newer versions of Triton print many warnings at exit.
    """
    if "triton" in sys.modules:
        yield
        return
    log = logging.getLogger("torch.utils.flop_counter")
    # Torch would log a warning that Triton is missing.
    log.disabled = True
    sys.modules["triton"] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules["triton"]
        log.disabled = False


with _without_triton():
    from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count, shape_wrapper

_BYTES = 4


def measure_cost(traced: Traced, widths: IndexSet | tuple[int, ...], example: Tree) -> Cost:
    """Measure the cost of training a submodel in one step. The result is cached.

    Args:
        traced: The traced model.
        widths: The index set of the submodel, or its number of units in each group.
        example: A batch `[b, ...]` with b >= 2.

    Raises:
        InputError: The training step fails.
    """
    shape = tuple(w if isinstance(w, int) else len(w) for w in widths)
    key = (shape, tuple(chain.from_iterable(part.shape for part in list_leaves(example))))
    if key not in traced.costs:
        module = traced.make_skeleton(shape)
        inputs = map_tree(lambda part: part.clone(), example)
        try:
            traced.costs[key] = measure_step(module, inputs)
        # The code of a module may raise any exception.
        except Exception as error:
            rows = len(list_leaves(example)[0])
            problem = f"{type(module).__name__} cannot be trained on a batch of {rows}: {short_line(error)}"
            raise InputError("model", problem) from error
    return traced.costs[key]


def measure_layers(traced: Traced, trained: Collection[str], example: Tree) -> Cost:
    """Return the cost of training only some tensors of the whole model.

    Args:
        traced: The traced model.
        trained: Names of the tensors that are trained. All others keep their values.
        example: A batch `[b, ...]` with b >= 2.
    """
    module = traced.make_full_skeleton()
    for name, parameter in zip(traced.names, trainable_parameters(module), strict=True):
        parameter.requires_grad_(name in trained)
    return measure_step(module, map_tree(lambda part: part.clone(), example))


def find_backward_layers(traced: Traced, example: Tree) -> list[tuple[str, ...]]:
    """Return the layers in the order in which the backward pass reaches them, each as the names of its parameters.

    The pass is that of a batch `[b, ...]` with b >= 2. Layers without a gradient are last.
    """
    module = traced.make_full_skeleton()
    module.train()
    completed: list[str] = []
    for name, parameter in zip(traced.names, trainable_parameters(module), strict=True):
        parameter.register_post_accumulate_grad_hook(lambda _, name=name: completed.append(name))
    with torch.random.fork_rng():
        torch.autograd.backward([_sum_outputs(module, map_tree(lambda part: part.clone(), example))])
    layers: dict[str, list[str]] = {}
    for name in traced.names:
        layers.setdefault(layer_of(name), []).append(name)
    place = {name: number for number, name in enumerate(completed)}
    ordered = sorted(layers.values(), key=lambda names: max(place.get(name, len(place)) for name in names))
    return [tuple(names) for names in ordered]


def measure_step(module: nn.Module, example: Tree) -> Cost:
    """Return the cost of one SGD step on a batch."""
    module.train()
    params = sum(p.numel() for p in trainable_parameters(module))
    # SGD updates weights in place. This needs no memory and is not counted as FLOPs.
    with torch.random.fork_rng(), Meter() as meter:
        torch.autograd.backward([_sum_outputs(module, example)])
    still = sum(x.numel() * x.element_size() for x in (*module.parameters(), *module.buffers()))
    return Cost(
        params=params,
        bytes=_BYTES * params,
        flops=meter.flops / len(list_leaves(example)[0]),
        memory=still + meter.peak,
    )


def _convolution_backward_flops(
    grad_out: Sequence[int], x: Sequence[int], weight: Sequence[int], *options: Any, **_: object
) -> int:
    """Return the FLOPs of the gradients of a convolution. torch's own formula ignores groups.

    Args:
        grad_out: Shape of the result's gradient.
        x: Shape of the input.
        weight: Shape of the weight.
        options: The next arguments of `aten.convolution_backward`: bias_sizes, stride, padding, dilation, transposed,
            output_padding, groups and output_mask.
    """
    transposed, output_mask = options[4], options[7]
    positions = x if transposed else grad_out
    return 2 * math.prod(positions) * math.prod(weight[1:]) * int(sum(output_mask[:2]))


def _attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: object, **__: object) -> int:
    return int(sdpa_flop_count(query, key, value))


def _attention_backward_flops(
    grad_out: Sequence[int], query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: object, **__: object
) -> int:
    return int(sdpa_backward_flop_count(grad_out, query, key, value))


def _grouped_product_flops(left: Sequence[int], right: Sequence[int], *_: object, **__: object) -> int:
    # Each row is multiplied by the matrix of only one expert.
    return 2 * math.prod(left) * right[-1]


def _recurrent_flops(
    x: Sequence[int], input_weight: Sequence[int], hidden_weight: Sequence[int], *_: object, **__: object
) -> int:
    """Return the FLOPs of one direction of one recurrent layer.

    Args:
        x: Shape of the input, `[steps, b, inputs]`.
        input_weight: Shape of the weight of the input, `[gates * hidden, inputs]`.
        hidden_weight: Shape of the weight of the last hidden state, `[gates * hidden, hidden]`.
    """
    return 2 * math.prod(x[:2]) * (math.prod(input_weight) + math.prod(hidden_weight))


def _recurrent_backward_flops(*shapes: Any, **_: object) -> int:
    # The gradients of the weights, and those of the inputs and the hidden states.
    return 2 * _recurrent_flops(*shapes)


def _vector_product_flops(matrix: Sequence[int], *_: object, **__: object) -> int:
    return 2 * math.prod(matrix)


def _skip_first(formula: Callable[..., int]) -> Callable[..., int]:
    """Return the formula for an operator whose first argument is added to the product, which is not counted."""
    return lambda added, *shapes, **options: formula(*shapes, **options)


def _trilinear_flops(
    left: Sequence[int],
    weight: Sequence[int],
    right: Sequence[int],
    left_new: Sequence[int],
    weight_new: Sequence[int],
    right_new: Sequence[int],
    *_: object,
    **__: object,
) -> int:
    """Return the FLOPs of a bilinear layer, or of one of its gradients: a multiplication and an addition per term.

    The operator broadcasts three tensors to `[b, outputs, left, right]`, multiplies them and sums over some dimensions.

    Args:
        left: Shape of the first tensor.
        weight: Shape of the second tensor.
        right: Shape of the third tensor.
        left_new: The dimensions of the broadcast shape that the first tensor lacks.
        weight_new: The dimensions of the broadcast shape that the second tensor lacks.
        right_new: The dimensions of the broadcast shape that the third tensor lacks.
    """
    shapes = []
    for shape, new in ((left, left_new), (weight, weight_new), (right, right_new)):
        sizes = list(shape)
        for dim in sorted(new):
            sizes.insert(dim, 1)
        shapes.append(sizes)
    broadcast: list[int] = [max(sizes) for sizes in zip(*shapes, strict=True)]
    return 2 * math.prod(broadcast)


# Torch has no FLOP formulas for attention and LSTMs on a CPU, bilinear layers, products with a vector, sums of matrix
# products and the matrix products of experts. Its formula for the backward pass of a convolution ignores groups.
_MISSING_FORMULAS = {
    torch.ops.aten._grouped_mm: _grouped_product_flops,
    torch.ops.aten._trilinear: _trilinear_flops,
    torch.ops.aten.convolution_backward: _convolution_backward_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
    torch.ops.aten.mkldnn_rnn_layer: _recurrent_flops,
    torch.ops.aten.mkldnn_rnn_layer_backward: _recurrent_backward_flops,
    torch.ops.aten.mv: _vector_product_flops,
    torch.ops.aten.dot: _vector_product_flops,
    torch.ops.aten.addmv: _skip_first(_vector_product_flops),
    # As for experts, each row of the left matrices is multiplied by one matrix.
    torch.ops.aten.addbmm: _skip_first(_grouped_product_flops),
}
_FORMULAS = flop_registry | {operator: shape_wrapper(formula) for operator, formula in _MISSING_FORMULAS.items()}


def _sum_outputs(module: nn.Module, example: Tree) -> Tensor:
    out = [x.float().sum() for x in iterate_tensors(forward(module, example)) if x.requires_grad]
    return torch.stack(out).sum()


class Meter(TorchDispatchMode):
    """A mode that counts FLOPs and the bytes of new tensors.

    It uses the formulas of torch's FlopCounterMode, and those of `_MISSING_FORMULAS`. FlopCounterMode itself would
    import torch._dynamo, which takes a second.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.peak = 0
        self._now = 0

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # If this method returned True, torch would import torch._dynamo, which takes a second.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Iterable[type], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        known = {x.untyped_storage().data_ptr() for x in iterate_tensors((args, kwargs)) if x.layout == torch.strided}
        out = func(*args, **kwargs)
        formula = _FORMULAS.get(func.overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        for x in iterate_tensors(out):
            # A sparse tensor has no storage. Its inner tensors are already counted.
            if x.layout != torch.strided:
                continue
            storage = x.untyped_storage()
            if storage.data_ptr() not in known:
                known.add(storage.data_ptr())
                self._now += storage.nbytes()
                weakref.finalize(storage, self._free_bytes, storage.nbytes())
        self.peak = max(self.peak, self._now)
        return out

    def _free_bytes(self, size: int) -> None:
        self._now -= size
