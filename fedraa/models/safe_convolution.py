"""The backward pass of a convolution on a CPU, without two faults of oneDNN 3.12 (PyTorch 2.13).

The first fault overwrites memory. It occurs in the gradient of a convolution with a 1x1 kernel and a stride. oneDNN
copies the pixels that it needs into a buffer and runs its kernel of stride 1 on them. If channels are the innermost
dimension and there are fewer than 8 of them (AVX2) or 16 (AVX-512), the copy exceeds the buffer:
https://github.com/uxlfoundation/oneDNN/issues/6035. The process then dies or hangs, or values elsewhere in memory
change silently. The fault occurs with `channels_last` images, a permuted NHWC array and `channels_last` weights. For
few channels the backward pass of this module therefore selects the pixels itself and runs PyTorch's kernel with stride
1. The result is the same sum for any memory format and CPU.

The second fault gives wrong weight gradients of some three-dimensional convolutions in bfloat16. This module computes
these gradients in float32.

The import of this module replaces PyTorch's CPU kernel of `convolution_backward`. Every backward pass of a convolution
calls the replacement: in a module, a function, a script, or under vmap. The replacement passes all other convolutions
to PyTorch's kernel.
"""

from typing import Any

import torch
from torch import Tensor

_OPERATOR = "convolution_backward"
# The fault occurs only with fewer channels than oneDNN's largest block, which has 16. To be safe, the limit is twice
# 16.
_FEW_CHANNELS = 32

_backward = torch.library.get_kernel(f"aten::{_OPERATOR}", "CPU")


def _convolution_backward(
    keys: torch.DispatchKeySet, grad_output: Tensor, input: Tensor, weight: Tensor, *options: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, weight and bias that the output mask selects.

    The arguments and the result are those of PyTorch's operator `convolution_backward`.

    Args:
        keys: The dispatch keys of the call.
        grad_output: The gradient of the result.
        input: The input.
        weight: The weight.
        options: The sizes of the bias, stride, padding, dilation, transposed, output padding, groups, and the output
            mask.
    """
    bias_sizes, stride, padding, dilation, transposed, _, groups, output_mask = options
    if weight.ndim == 5 and weight.dtype == torch.bfloat16:
        grads = _convolution_backward(keys, grad_output.float(), input.float(), weight.float(), *options)
        return tuple(None if grad is None else grad.bfloat16() for grad in grads)
    strided = max(stride) > 1 and max(weight.shape[2:]) == 1 and not any(padding)
    channels = (grad_output if transposed else input).shape[1]
    if not strided or channels >= _FEW_CHANNELS or not output_mask[1]:
        unchanged: tuple[Tensor | None, ...] = _backward.call_boxed(keys, grad_output, input, weight, *options)
        return unchanged
    sides = weight.ndim - 2
    # The stride may be a single value for all dimensions.
    steps = [*stride, *stride[-1:] * (sides - len(stride))]
    pixels = (slice(None), slice(None), *(slice(None, None, step) for step in steps))
    unstrided = [1] * sides, padding, dilation, transposed, [0] * sides, groups
    if transposed:
        mask = [output_mask[0], True, False]
        kept = grad_output[pixels]
        grad_input, grad_weight, _ = _backward.call_boxed(keys, kept, input, weight, None, *unstrided, mask)
        grad_bias = None
        if output_mask[2]:
            grad_bias = grad_output.sum([0, *range(2, grad_output.ndim)])
        return grad_input, grad_weight, grad_bias
    grad_kept, grad_weight, grad_bias = _backward.call_boxed(
        keys, grad_output, input[pixels], weight, bias_sizes, *unstrided, output_mask
    )
    grad_input = None
    if output_mask[0]:
        grad_input = torch.zeros_like(input)
        grad_input[pixels] = grad_kept
    return grad_input, grad_weight, grad_bias


def replace_kernel() -> torch.library.Library:
    """Replace PyTorch's kernel for as long as the returned object exists."""
    # Torch's constructor has no types.
    library = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    # Torch's method has no types.
    library.impl(_OPERATOR, _convolution_backward, "CPU", with_keyset=True)  # type: ignore[no-untyped-call]
    return library


protection = replace_kernel()
