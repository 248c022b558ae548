"""The settings of a client's local training."""

from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt

from fedraa.client.auto_steps import AutoSteps
from fedraa.client.error_feedback import ErrorFeedback
from fedraa.client.gradient_transforms import GRADIENT_TRANSFORM
from fedraa.client.local_algorithm import LocalAlgorithm
from fedraa.client.local_optimizer import LOCAL_OPTIMIZER, SGD
from fedraa.numbers import Count, Decay, NotNegative, Positive, Share, UpToOne

Ints = npt.NDArray[np.int64] | int
Sizes = TypeVar("Sizes", int, npt.NDArray[np.int64])


@dataclass(frozen=True)
class LocalTraining:
    """The settings of a client's local training. All optional terms are off by default.

    A local step computes in this order: gradient (with `sam_rho`, at perturbed weights), mask of the submodel, proximal
    term, custom `transforms`, control variate, `grad_mix`, clipping, weight decay, local optimizer. With a mask, the
    gradient is set to 0 outside of the mask after every part. Clipping does not change the weight decay, as in
    HeteroFL's code. With `grad_mix` m, the decay is multiplied by m. AdamW applies the decay directly to the weights.

    Attributes:
        lr: Learning rate.
        lr_schedule: Factor on the learning rate over the run: constant, adaptive, or a schedule such as cosine.
        momentum: Momentum of the local optimizer sgd.
        batch_size: Samples per minibatch.
        epochs: Number of passes over the client's data, if `steps` is None.
        steps: Number of minibatches of a task, or a text such as `auto`. With `auto`, AutoSteps sets the number for
            each client and fragment by their costs.
        weight_decay: L2 decay of the weights.
        clip: Largest norm of the whole gradient; 0 for no limit.
        prox_mu: Weight rho of the proximal term (rho/2)||w - w_received||^2 of FedProx, FedAsync and Fed-RAA (eq. 2, in
            which the square is missing). The term is part of the gradient, so it enters the momentum.
        sam_rho: Radius of sharpness-aware minimisation (rho of FedSAM, delta of SubDisMO).
        grad_mix: Weight m of the gradient in m * g + (1 - m) * server momentum (alpha of FedCM, beta of MoFedSAM, 1 -
            beta of MimeLite).
        control: True to add the control variate c - c_i to the gradient (SCAFFOLD).
        full_gradient: True to also send the full-batch gradient at the received weights (MimeLite).
        squares: True to also send, for each coordinate, the sum of its squared gradients over all local steps
            (PruneFL). This includes coordinates outside of the mask.
        adversary: True to train on inputs that an adversary of each client has changed (FedRobust).
        label_masked: True to set the logits of labels that the client's data lack to 0 (HeteroFL).
        logit_calibration: k in log((k * p + (1 - k) * q) / q), which is added to the logits. p is the share of each
            label in the client's data, and q its share in the data of all clients (Menon et al. 2021; FedLC, Zhang et
            al. 2022, has equal shares q). Training then does not unlearn labels that are rare at the client. With 1,
            labels that the client's data lack have no influence. The field needs the objective classification.
        compressor: Compression of the delta that a client sends: none, topk:SHARE, randomk:SHARE, 8bit,
            qsgd:LEVELS, scaled-sign, sign, or a custom Compressor.
        error_feedback: Correction of the compressor's errors in later tasks: none, ef or ef21.
        transforms: Custom GradientTransforms, which are applied after the proximal term.
        split: Number of layers in the client's part in split learning (SplitFed); 0 for no split.
        full_rate: True to divide the activations of a submodel by its share of the units while it trains, and to
            multiply its learning rate by this share. The submodel's weights then change as fast as in the full model.
            In addition, units that lose the inputs from other fragments at the start of a run keep the norm of their
            weights. Otherwise activations would shrink from layer to layer.
        scale_activations: True to scale the activations as with `full_rate`, but not the learning rate.
        min_batch: The smallest minibatch on which the model can be trained, 1 or 2, as measured before the run. With 2,
            a single sample at the end of a pass is added to the minibatch before it.
        local_optimizer: Local optimizer: sgd, adam, adamw, delta-sgd, dog, dowg, ldog, or a custom LocalOptimizer.
        algorithm: The LocalAlgorithm that trains a task, for example one that also trains a personal model.
        personal_layers: Layers that stay at each client: names of modules or parameters, patterns such as `head.*`, or
            `last-layer`, `all-but-last-layer` or `batch-norm`.
        optimizer_state: `reset` sets the optimizer's state to zero at the start of each task; `keep` keeps the state of
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
        """The rule that computes the number of local steps from costs; None if the number is fixed."""
        return AutoSteps.of(self.steps)

    @property
    def passes(self) -> float:
        """The number of forward and backward passes per local step. SAM adds one, and an input adversary adds one."""
        return 1 + bool(self.sam_rho) + self.adversary + self.algorithm.passes

    @property
    def needs_whole_gradient(self) -> bool:
        """True if a step needs the gradients of all parameters together, for example their norm."""
        if self.sam_rho or self.clip or self.full_gradient or self.squares or self.algorithm.needs_whole_gradient:
            return True
        if LOCAL_OPTIMIZER.resolve(self.local_optimizer).needs_whole_gradient:
            return True
        return any(GRADIENT_TRANSFORM.resolve(term).whole for term in self.transforms)

    def count_minibatches(self, shard: Sizes) -> Sizes:
        """Return the number of minibatches in a pass over `shard` samples.

        `shard` and the result are numbers for one client, or arrays for several.
        """
        whole = shard // self.batch_size
        count: Sizes = whole + ((shard % self.batch_size >= self.min_batch) | (whole == 0))
        return count

    def spans(self, shard: int) -> list[slice]:
        """Return, for each minibatch of a pass, its slice of the shuffled samples."""
        starts = [number * self.batch_size for number in range(self.count_minibatches(shard))]
        return [slice(start, end) for start, end in zip(starts, [*starts[1:], shard], strict=True)]

    def count_samples(self, shard: int) -> int:
        """Return the number of samples in a task's minibatches, if its client has `shard` samples.

        A sample counts once for each minibatch that it is in.
        """
        if self.steps is None:
            return self.epochs * shard
        assert isinstance(self.steps, int), "these follow from costs"
        epochs, steps = divmod(self.steps, self.count_minibatches(shard))
        return epochs * shard + steps * self.batch_size

    @property
    def extra_epochs(self) -> int:
        """The number of passes over the client's data that a task needs besides its local steps."""
        return self.full_gradient + self.algorithm.epochs

    def count_sample_passes(self, shard: int) -> float:
        """Return the number of forward and backward passes of samples in a task, if its client has `shard` samples."""
        return self.count_samples(shard) * self.passes + shard * self.extra_epochs

    def samples_of_steps(self, steps: Ints, shard: Sizes) -> npt.NDArray[np.float64]:
        """Return the number of samples in `steps` local steps, at the mean minibatch size of a pass.

        The arguments are numbers for one client, or arrays for all clients.
        """
        return np.asarray(steps * shard / self.count_minibatches(shard))

    def sample_passes_of_steps(self, steps: Ints, shard: Sizes) -> npt.NDArray[np.float64]:
        """Return the number of forward and backward passes of samples in a task of `steps` local steps.

        The arguments are numbers for one client, or arrays for all clients.
        """
        return np.asarray(self.samples_of_steps(steps, shard) * self.passes + shard * self.extra_epochs)

    def path_length(self, lr: float, steps: int) -> float:
        """Return the length that the path of SGD would have with gradients of length 1 (lr * ||a||_1 in FedNova).

        With momentum m and proximal weight mu, the length x follows v <- m v + 1 - mu x, x <- x + lr v. Dampening and
        Nesterov's momentum change these steps as they change the steps of the weights.

        Args:
            lr: Mean learning rate of the steps.
            steps: Number of local steps.
        """
        sgd = SGD()
        # A server calls this method for every update, and `resolve` takes a tenth of a millisecond.
        if self.local_optimizer != "sgd":
            optimizer = LOCAL_OPTIMIZER.resolve(self.local_optimizer)
            sgd = optimizer if isinstance(optimizer, SGD) else sgd
        velocity = 0.0
        length = 0.0
        for step in range(steps):
            share = 1 - sgd.dampening if step else 1.0
            velocity = self.momentum * velocity + share - share * self.prox_mu * length
            direction = velocity
            if sgd.nesterov:
                direction = 1 - self.prox_mu * length + self.momentum * velocity
            length += lr * direction
        return length

    def count_steps(self, shard: int) -> int:
        """Return the number of local steps of a task of a client with `shard` samples."""
        if self.steps is None:
            return self.epochs * self.count_minibatches(shard)
        assert isinstance(self.steps, int), "these follow from costs"
        return self.steps
