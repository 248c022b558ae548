"""The input adversary of FedRobust (Reisizadeh et al. 2020): x' = L * x + d, element by element.

Each client has an adversary (L, d), which changes the client's inputs to increase the loss. The paper's L is a full
matrix with 3072^2 numbers per client on CIFAR. This L is diagonal, so that L and d have the size of one sample. The
constants come from the paper's code, in which the loss of a batch is a sum over samples.
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
    """Return the declaration of the adversary (L, d) that each client keeps between tasks.

    At first L = 1 and d = 0. A sample has `inputs` values.
    """
    identity = np.concatenate([np.ones(inputs, np.float32), np.zeros(inputs, np.float32)])
    return KeptBuffer("adversary", identity, size=2 * inputs)


class Adversary:
    """The adversary of one client: a factor L and a shift d per input value, trained by gradient ascent.

    Args:
        state: L and d as a flat tensor [2 m], for samples of m values.
        sample: The shape of one sample.
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
        """Take one ascent step on f - `SCALE_PENALTY` ||L - 1||^2 - `SHIFT_PENALTY` ||d||^2.

        f is the loss, summed over the batch, at the current weights. The step changes `state`, on which f must depend
        and which contains the factor L and the shift d.
        """
        (gradient,) = torch.autograd.grad(loss, self.state)
        with torch.no_grad():
            scale, shift = self.state.view(2, -1)
            rise, lift = gradient.view(2, -1)
            scale += SCALE_STEP * (rise - 2 * SCALE_PENALTY * (scale - 1))
            shift += SHIFT_STEP * (lift - 2 * SHIFT_PENALTY * shift)
