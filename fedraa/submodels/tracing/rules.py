"""The table of the tracer's rules. A rule sets the unit labels of the result of a torch function.

A rule takes the recorder, and the name, the result and the arguments of the function. The name `add` stands for
`torch.add`, `Tensor.add`, `Tensor.add_` and `+`.
"""

import hashlib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any

from fedraa.components.text import import_path_of
from fedraa.errors import InputError
from fedraa.submodels.tracing import attention_rules, layer_rules, product_rules, shape_rules
from fedraa.submodels.tracing.accept import short_line
from fedraa.submodels.tracing.recorder import Recorder, Rule, iterate_tensors

_GROUPS: dict[Rule, str] = {
    shape_rules.label_elementwise: """
        abs absolute acos acosh add addcdiv addcmul alpha_dropout and angle asin asinh atan atan2 atanh ceil celu
        clamp clamp_max clamp_min clip complex conj copysign cos cosh dropout1d dropout2d dropout3d elu eq erf erfc
        exp exp2 expit expm1 feature_alpha_dropout floor floor_divide floordiv fmax fmin fmod ge gelu greater
        greater_equal gt hardshrink hardsigmoid hardswish hardtanh hypot iadd iand idiv imag imul invert ior isfinite
        isinf isnan isub itruediv ldexp le leaky_relu lerp less less_equal log log10 log1p log2 logaddexp logical_and
        logical_not logical_or logical_xor logit logsigmoid lt masked_fill maximum minimum mish mod nan_to_num ne or
        polar positive pow radd rand rdiv real reciprocal relu relu6 remainder ror round rpow rrelu rsqrt rsub
        rtruediv selu sgn sigmoid sign silu sin sinh softplus softshrink softsign sqrt square sub subtract tan tanh
        tanhshrink threshold trunc where xlogy xor""",
    shape_rules.label_scaled: "div divide dropout mul multiply neg negative rmul true_divide truediv",
    shape_rules.label_same: """
        bernoulli bfloat16 bool clone contiguous cpu data detach double empty_like float full_like half int long
        ones_like rand_like randn_like requires_grad to tril triu type type_as zero zeros_like""",
    shape_rules.label_constant: "new_empty new_full new_ones new_tensor new_zeros",
    shape_rules.label_copied: "copy",
    shape_rules.label_assigned: "setitem",
    shape_rules.label_moved: """
        T broadcast_to expand expand_as flatten flip fliplr flipud mT moveaxis movedim narrow permute ravel repeat
        repeat_interleave reshape reshape_as rot90 squeeze swapaxes swapdims t tile transpose unflatten unsqueeze view
        view_as""",
    shape_rules.label_rolled: "roll",
    shape_rules.label_shuffled: "channel_shuffle pixel_shuffle pixel_unshuffle",
    shape_rules.label_unfolded: "unfold",
    shape_rules.label_folded: "fold",
    shape_rules.label_complex: "view_as_complex",
    shape_rules.label_real: "view_as_real",
    shape_rules.label_fourier: """
        fft_fft fft_fft2 fft_fftn fft_hfft fft_ifft fft_ifft2 fft_ifftn fft_ihfft fft_irfft fft_irfft2 fft_irfftn
        fft_rfft fft_rfft2 fft_rfftn""",
    shape_rules.label_sampled: "grid_sample",
    shape_rules.label_taken: "getitem index_select select",
    shape_rules.label_split: "chunk split split_with_sizes tensor_split unbind unsafe_chunk unsafe_split",
    shape_rules.label_joined: "cat concat concatenate stack",
    shape_rules.label_padded: "pad",
    shape_rules.label_pooled: """
        adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d adaptive_max_pool1d adaptive_max_pool2d
        adaptive_max_pool3d avg_pool1d avg_pool2d avg_pool3d interpolate lp_pool1d lp_pool2d max_pool1d
        max_pool1d_with_indices max_pool2d max_pool2d_with_indices max_pool3d max_pool3d_with_indices max_unpool1d
        max_unpool2d max_unpool3d upsample""",
    shape_rules.label_reduced: """
        all amax amin aminmax any argmax argmin argsort cummax cummin cumsum linalg_norm linalg_vector_norm log_softmax
        logsumexp max mean min nansum norm normalize prod softmax softmin sort std std_mean sum topk var var_mean""",
    layer_rules.label_linear: "linear",
    layer_rules.label_convolution: "conv1d conv2d conv3d",
    layer_rules.label_transposed_convolution: "conv_transpose1d conv_transpose2d conv_transpose3d",
    layer_rules.label_batch_norm: "batch_norm instance_norm",
    layer_rules.label_group_norm: "group_norm",
    layer_rules.label_layer_norm: "layer_norm rms_norm",
    layer_rules.label_embedding: "embedding embedding_bag",
    layer_rules.label_prelu: "prelu",
    layer_rules.label_glu: "glu",
    layer_rules.label_bilinear: "bilinear",
    layer_rules.label_weight_norm: "_weight_norm",
    product_rules.label_matmul: "matmul bmm mm mv rmatmul",
    product_rules.label_addmm: "addmm addbmm baddbmm",
    product_rules.label_einsum: "einsum",
    product_rules.label_grouped_product: "_grouped_mm grouped_mm",
    product_rules.label_scatter: "index_add index_copy scatter scatter_add",
    product_rules.label_gather: "gather",
    attention_rules.label_attention: "scaled_dot_product_attention",
    attention_rules.label_recurrent: "gru lstm rnn_relu rnn_tanh",
    attention_rules.label_cell: "gru_cell lstm_cell rnn_relu_cell rnn_tanh_cell",
    attention_rules.label_multi_head: "multi_head_attention_forward",
}

_BUILTIN: dict[str, Rule] = {name: rule for rule, names in _GROUPS.items() for name in names.split()}

_own: ContextVar[Mapping[str, Rule]] = ContextVar("_own", default=MappingProxyType({}))


@contextmanager
def tracing_rules(rules: Mapping[str, Rule]) -> Iterator[None]:
    """Use custom rules to trace models inside the block.

    The keys of `rules` are names of torch functions, such as `sinc`.

    A rule `rule(recorder, name, out, args, kwargs)` sets the unit labels of a function's result: an integer for each
    element. Elements with equal labels belong to the same unit, such as a neuron. A custom rule replaces the built-in
    rule of its function. A rule can call these methods:

    - `recorder.labels(x)` returns the label of each element of an argument.
    - `recorder.put(out, labels)` sets the label of each element of the result.
    - `recorder.ties.tie(left, right)` records that corresponding elements must be cut together.
    - `recorder.ties.pin(labels, reason)` records that units are never cut.

    A wrong rule is detected, because tracing compares submodels with the full model.

    Raises:
        InputError: A name is wrong. A rule does not take five arguments, fails, or sets no labels.
    """
    if not isinstance(rules, Mapping):
        raise InputError("tracing_rules", got=rules, expected="a dict from function names to rules")
    for name, rule in rules.items():
        if not isinstance(name, str) or not name.isidentifier() or name.endswith("_"):
            expected = "the plain name of a torch function, such as 'sinc'"
            raise InputError("tracing_rules", got=name, expected=expected)
        if not callable(rule) or not _takes_five(rule):
            expected = "a function (recorder, name, out, args, kwargs)"
            raise InputError(f"tracing_rules {name!r}", got=rule, expected=expected)
    token = _own.set({**_own.get(), **rules})
    try:
        yield
    finally:
        _own.reset(token)


class WrongRuleError(Exception):
    """An error about a custom rule that fails or sets wrong labels."""


def collect_rules() -> dict[str, Rule]:
    """Return the built-in rules and the custom rules that are active."""
    return _BUILTIN | {name: partial(_apply_checked, rule) for name, rule in _own.get().items()}


def has_custom_rules() -> bool:
    """Return True inside of a `tracing_rules` block."""
    return bool(_own.get())


def _apply_checked(rule: Rule, r: Recorder, name: str, out: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Apply a custom rule and check its result.

    Raises WrongRuleError if the rule fails, or sets no labels or wrong labels.
    """
    try:
        rule(r, name, out, args, kwargs)
    # A custom rule may raise any exception.
    except Exception as error:
        raise WrongRuleError(f"the rule of {name!r} fails: {short_line(error)}") from error
    if not all(map(r.has_labels, iterate_tensors(out))):
        raise WrongRuleError(f"the rule of {name!r} sets no labels for its result; call recorder.put(out, labels)")
    if not all(r.ties.owns_labels(r.labels(x)) for x in iterate_tensors(out)):
        problem = f"the rule of {name!r} passes unknown labels to recorder.put"
        raise WrongRuleError(f"{problem}; pass labels that recorder.labels(x) returned")


def described_rules() -> dict[str, str] | None:
    """Return the import path and a digest of the code of each custom rule.

    The result is None if a rule is a closure or an object. The import path and the code do not show the state of such a
    rule.
    """
    own = _own.get()
    if not all(isinstance(rule, FunctionType) and not rule.__closure__ for rule in own.values()):
        return None
    return {name: f"{import_path_of(rule)} {_digest_code(rule)}" for name, rule in own.items()}


def _digest_code(rule: Rule) -> str:
    """Return a digest of the file that defines a rule. The rule may call other functions of this file."""
    try:
        source = inspect.getsource(inspect.getmodule(rule) or rule)
    except (OSError, TypeError):
        source = repr(rule)
    return hashlib.sha256(source.encode()).hexdigest()


def _takes_five(rule: Rule) -> bool:
    try:
        inspect.signature(rule).bind(*range(5))
    except (TypeError, ValueError):
        return False
    return True
