"""The settings of a client's local training. All optional terms are off by default."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt

from fedraa.client.auto_steps import AutoSteps
from fedraa.client.error_feedback import ErrorFeedback
from fedraa.client.gradient_transforms import GRADIENT_TRANSFORM
from fedraa.client.local_algorithm import LocalAlgorithm
from fedraa.client.local_optimizer import LOCAL_OPTIMIZER
from fedraa.numbers import Count, Decay, NotNegative, Positive, Share, UpToOne

Ints = npt.NDArray[np.int64] | int
Sizes = TypeVar("Sizes", int, npt.NDArray[np.int64])


@dataclass(frozen=True)
class LocalTraining:
    """The settings of a client's training: a local optimizer, and the transforms of its gradient.

    If the submodel is masked, the changes of every transform are also masked. Order within a step: gradient (with
    `sam_rho`, at the perturbed weights), mask, proximal term, custom `transforms`, control variate, `grad_mix`,
    clipping, weight decay, local optimizer. Clipping does not change the weight decay, as in HeteroFL's code. With
    `grad_mix` m, the decay is multiplied by m, as if it were added to the gradient before the mix. AdamW applies the
    decay directly to the weights.

    Attributes:
        lr: Learning rate.
        lr_schedule: Factor on the learning rate over the run: constant, or a schedule such as cosine.
        momentum: Momentum of local sgd.
        batch_size: Samples per minibatch.
        epochs: Passes over the client's data, if `steps` is None.
        steps: Number of minibatches, or a text such as `auto`, from which AutoSteps derives a number for each client
            and fragment by their costs.
        weight_decay: L2 decay of the weights.
        clip: Bound on the norm of the whole gradient (0: off).
        prox_mu: Weight rho of the proximal term (rho/2)||w - w_received||^2 (FedProx, FedAsync, Fed-RAA eq. 2 with the
            square of the definition of g). The term is part of the gradient, so it enters the momentum.
        sam_rho: Radius of sharpness-aware minimisation (rho of FedSAM, delta of SubDisMO).
        grad_mix: Weight m of the gradient in m * g + (1 - m) * server momentum (alpha of FedCM, beta of MoFedSAM, 1 -
            beta of MimeLite).
        control: Add the control variate c - c_i (SCAFFOLD).
        full_gradient: Also return the full-batch gradient at the received weights (MimeLite).
        squares: Also return the sum of squared gradients of all coordinates, including absent ones (PruneFL).
        adversary: Ascend on an affine input perturbation of each client (FedRobust).
        label_masked: Set the logits of labels that the client does not hold to 0 (HeteroFL).
        logit_calibration: k in log((k * p + (1 - k) * q) / q), which is added to the logits. p is the share of each
            label in the client's data, and q its share in the data of all clients (logit adjustment, Menon et al. 2021,
            and FedLC, Zhang et al. 2022, with q in place of equal shares). Training then does not unlearn labels that
            are rarer at the client than at all clients. With 1, absent labels have no influence. It needs the
            classification objective.
        compressor: Compression of the delta that a client sends: none, topk:SHARE, randomk:SHARE, 8bit,
            qsgd:LEVELS, scaled-sign, sign, or a custom Compressor.
        error_feedback: Correction of the compressor's errors in later tasks: none, ef or ef21.
        transforms: Custom GradientTransforms of the gradient, after the proximal term.
        split: Number of layers in the client's part in split learning (SplitFed); 0 turns it off.
        full_rate: While a submodel trains, divide its activations by its share of the units, and multiply its learning
            rate by the share. Its coordinates then move as fast as in the full model with rate `lr`.
        scale_activations: Scale activations as with `full_rate`, but not the learning rate.
        min_batch: The smallest minibatch that the model can be trained on, measured before the start. With 2, a single
            sample at the end of a pass joins the minibatch before it.
        local_optimizer: Local optimizer: sgd, adam, adamw, delta-sgd, dog, dowg, ldog, or a custom LocalOptimizer.
        algorithm: The steps of a task, such as those of a personal model beside the shared one.
        personal_layers: Layers that stay at each client: names of modules or parameters, patterns such as `head.*`, or
            `last-layer`, `all-but-last-layer` or `batch-norm`.
        optimizer_state: `reset` sets the optimizer's state to zero at the start of each task, `keep` keeps the state of
            each client from one task to the next.
    """

    lr: Positive = 0.05
    lr_schedule: str = "constant"
    momentum: Decay = 0.5
    batch_size: Count = 32
    epochs: Count = 5
    steps: Count | str | None = None
    weight_decay: NotNegative = 0.0
    clip: NotNegative = 0.0
    prox_mu: NotNegative = 0.0
    sam_rho: NotNegative = 0.0
    grad_mix: Share = 1.0
    control: bool = False
    full_gradient: bool = False
    squares: bool = False
    adversary: bool = False
    label_masked: bool = False
    logit_calibration: UpToOne = 0.0
    compressor: Any = "none"
    error_feedback: ErrorFeedback = "none"
    transforms: tuple[Any, ...] = ()
    split: NonNegativeInt = 0
    full_rate: bool = False
    scale_activations: bool = False
    min_batch: Count = 1
    local_optimizer: Any = "sgd"
    optimizer_state: Literal["reset", "keep"] = "reset"
    algorithm: LocalAlgorithm = field(default_factory=LocalAlgorithm)
    personal_layers: tuple[str, ...] = ()

    @property
    def auto(self) -> AutoSteps | None:
        """Return the rule that computes the number of local steps from costs, or None if the number is fixed."""
        return AutoSteps.of(self.steps)

    @property
    def passes(self) -> float:
        """Return the forward-backward passes per step. SAM and the input adversary each need one more."""
        return 1 + bool(self.sam_rho) + self.adversary + self.algorithm.passes

    @property
    def needs_whole_gradient(self) -> bool:
        """Return True if a step needs the gradient of all parameters at once, for its norm or to keep it."""
        if self.sam_rho or self.clip or self.full_gradient or self.squares or self.algorithm.needs_whole_gradient:
            return True
        if LOCAL_OPTIMIZER.resolve(self.local_optimizer).needs_whole_gradient:
            return True
        return any(GRADIENT_TRANSFORM.resolve(term).whole for term in self.transforms)

    def count_minibatches(self, shard: Sizes) -> Sizes:
        """Return the number of minibatches in a pass over `shard` samples, for one client or an array of clients."""
        whole = shard // self.batch_size
        count: Sizes = whole + ((shard % self.batch_size >= self.min_batch) | (whole == 0))
        return count

    def spans(self, shard: int) -> list[slice]:
        """Return the slice of the shuffled samples for each minibatch of a pass."""
        starts = [number * self.batch_size for number in range(self.count_minibatches(shard))]
        return [slice(start, end) for start, end in zip(starts, [*starts[1:], shard], strict=True)]

    def samples(self, shard: int) -> int:
        """Return the number of training samples that one task of a client with `shard` samples processes."""
        if self.steps is None:
            return self.epochs * shard
        assert isinstance(self.steps, int), "these follow from costs"
        epochs, steps = divmod(self.steps, self.count_minibatches(shard))
        return epochs * shard + steps * self.batch_size

    @property
    def extra_epochs(self) -> int:
        """Return the passes over the data in addition to the local steps, such as one for the full-batch gradient."""
        return self.full_gradient + self.algorithm.epochs

    def passed_samples(self, shard: int) -> float:
        """Return a task's samples times the passes per step, plus the samples of the extra passes over the data."""
        return self.samples(shard) * self.passes + shard * self.extra_epochs

    def samples_in(self, steps: Ints, shard: Sizes) -> npt.NDArray[np.float64]:
        """Return the number of samples in `steps` local steps, each counted as a mean minibatch of a pass.

        The steps may begin anywhere in a pass. The arguments describe one client, or all clients at once.
        """
        return np.asarray(steps * shard / self.count_minibatches(shard))

    def passed_in(self, steps: Ints, shard: Sizes) -> npt.NDArray[np.float64]:
        """Return `samples_in` times the passes per step, plus the samples of the extra passes over the data."""
        return np.asarray(self.samples_in(steps, shard) * self.passes + shard * self.extra_epochs)

    def path_length(self, lr: float, steps: int) -> float:
        """Return the length of a path of SGD steps by gradients of length 1 (lr * ||a||_1, FedNova).

        With momentum m and the proximal weight mu, the path x follows v <- m v + 1 - mu x, x <- x + lr v.

        Args:
            lr: Mean learning rate of the steps.
            steps: Number of local steps.
        """
        velocity = 0.0
        length = 0.0
        for _ in range(steps):
            velocity = self.momentum * velocity + 1 - self.prox_mu * length
            length += lr * velocity
        return length

    def count_steps(self, shard: int) -> int:
        """Return the local steps of one task of a client with `shard` samples."""
        if self.steps is None:
            return self.epochs * self.count_minibatches(shard)
        assert isinstance(self.steps, int), "these follow from costs"
        return self.steps
