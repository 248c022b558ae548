"""FedRobust's affine input adversary (Reisizadeh et al. 2020), diagonal: x' = L * x + d, one weight per input.

The paper's L is a full matrix, (3072)^2 numbers per client on CIFAR. The diagonal keeps its meaning at the size of one
sample. The constants are those of the released code, where the loss of a batch is a sum.
"""

import numpy as np
import torch
from torch import Tensor

from fedraa.client.kept_buffer import KeptBuffer
from fedraa.messages import KEPT_PREFIX

SCALE_STEP, SHIFT_STEP = 0.001, 0.025
SCALE_PENALTY, SHIFT_PENALTY = 100.0, 4.0


ADVERSARY_KEY = KEPT_PREFIX + "adversary"


def declare_adversary(inputs: int) -> KeptBuffer:
    """Return the declaration of the adversary (L, d) that each client keeps, for samples of `inputs` numbers.

    It starts as the identity, L = 1 and d = 0.
    """
    identity = np.concatenate([np.ones(inputs, np.float32), np.zeros(inputs, np.float32)])
    return KeptBuffer("adversary", identity, size=2 * inputs)


class Adversary:
    """The adversary (L, d) of one client, flat [2 m] for samples of m numbers.

    It takes one ascent step per minibatch.
    """

    def __init__(self, state: Tensor, sample: torch.Size) -> None:
        self.state = state.clone().requires_grad_()
        self._sample = sample

    def perturb_inputs(self, x: Tensor) -> Tensor:
        """Return L * x + d for a batch [b, ...]."""
        scale, shift = self.state.view(2, *self._sample)
        perturbed: Tensor = x * scale + shift
        return perturbed

    def ascend_loss(self, loss: Tensor) -> None:
        """Take one step up f - l1 ||L - 1||^2 - l2 ||d||^2 of the batch's summed loss f, at the current weights."""
        (gradient,) = torch.autograd.grad(loss, self.state)
        with torch.no_grad():
            scale, shift = self.state.view(2, -1)
            rise, lift = gradient.view(2, -1)
            scale += SCALE_STEP * (rise - 2 * SCALE_PENALTY * (scale - 1))
            shift += SHIFT_STEP * (lift - 2 * SHIFT_PENALTY * shift)
