"""The backward pass of a convolution on a CPU, without two faults of oneDNN 3.12 (PyTorch 2.13).

The first fault overwrites memory in the gradient of a convolution with a 1x1 kernel and a stride:
https://github.com/uxlfoundation/oneDNN/issues/6035. It occurs only if the channels are the innermost dimension
(`channels_last` images or weights, permuted NHWC arrays) and if there are fewer than 8 channels (AVX2) or 16 (AVX-512).
The process then dies or hangs, or values change silently. With few channels, this module selects the pixels itself and
runs PyTorch's kernel with stride 1. The result is the same sum.

The second fault gives wrong weight gradients of some three-dimensional convolutions in bfloat16. This module computes
them in float32.

The import of this module replaces PyTorch's CPU kernel of `convolution_backward` everywhere. All other convolutions
still run PyTorch's kernel.
"""

from typing import Any

import torch
from torch import Tensor

_OPERATOR = "convolution_backward"
# The fault that overwrites memory occurs only with fewer than 16 channels. The limit is twice 16 for safety.
_FEW_CHANNELS = 32

_backward = torch.library.get_kernel(f"aten::{_OPERATOR}", "CPU")


def _convolution_backward(
    keys: torch.DispatchKeySet, grad_output: Tensor, input: Tensor, weight: Tensor, *options: Any
) -> tuple[Tensor | None, ...]:
    """Return the gradients of input, weight and bias, as PyTorch's operator `convolution_backward` does.

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
    # The stride may be one value for all dimensions.
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
    """Replace PyTorch's CPU kernel for the backward pass of convolutions, as long as the returned object exists."""
    library = torch.library.Library("aten", "IMPL")
    library.impl(_OPERATOR, _convolution_backward, "CPU", with_keyset=True)
    return library


protection = replace_kernel()
