"""The local solver as values: which steps a client takes. All terms default to off."""

from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import NonNegativeInt

from fedraa.client.auto_steps import AutoSteps
from fedraa.client.gradient_transforms import LOCAL_TERM
from fedraa.numbers import Count, Decay, NotNegative, Positive, Share, UpToOne

Ints = npt.NDArray[np.int64] | int
Sizes = TypeVar("Sizes", int, npt.NDArray[np.int64])


@dataclass(frozen=True)
class Solver:
    """A local optimizer on minibatches of the client's shard, and the terms that change its gradient.

    Where the submodel is masked, so is every term. Order within a step: gradient (with `sam`, at the perturbed
    weights), mask, proximal term, control variate, `fresh` blend, clipping, weight decay, local optimizer. Decay is
    part of the fresh gradient but is not clipped, as in HeteroFL's code; adamw applies it to the weights.

    - `epochs` passes over the shard or, where `steps` is given, that many minibatches; what AutoSteps reads, such as
      `auto`, stands for a number of each client and fragment, which follows from costs.
    - `proximal`: weight rho of (rho/2)||w - w_received||^2, in the gradient so that momentum sees it (FedProx,
      FedAsync, Fed-RAA eq. 2 with the square that the definition of g has).
    - `sam`: radius of sharpness-aware minimisation (rho of FedSAM, delta of SubDisMO).
    - `fresh`: weight of the fresh gradient in fresh * g + (1 - fresh) * server momentum (alpha of FedCM, beta
      of MoFedSAM, 1 - beta of MimeLite).
    - `control`: add the control variate c - c_i (SCAFFOLD).
    - `full_gradient`: also return the full-batch gradient at the received weights (MimeLite).
    - `squares`: also return the sum of squared gradients of all coordinates, absent ones too (PruneFL).
    - `adversary`: ascend on an affine input perturbation of the client's own (FedRobust).
    - `clip`: bound on the norm of the whole gradient; 0 is off.
    - `label_masked`: logits of labels that the client does not hold are 0 (HeteroFL).
    - `calibrate`: log(calibrate * p + (1 - calibrate) / C) is added to the logits of C labels, p the share of each in
      the client's shard (logit adjustment, Menon et al. 2021; among clients FedLC, Zhang et al. 2022). What is rare
      there is not unlearnt for that; with 1 what is absent counts for nothing. Another objective than classification
      has it off.
    - `compress`: how the delta is sent back: none, topk:SHARE, 8bit or an own Compressor.
    - `terms`: own LocalTerms, after the proximal one.
    - `full_rate`: a submodel's activations are scaled by the inverse of its share while it trains, its learning rate by
      the share: its coordinates move as fast as in the full model, whose rate `lr` is.
    - `min_batch`: the smallest minibatch that the model can be trained on, found before the start; with 2 the last
      minibatch of a pass, if it has one sample, is joined to the one before.
    - `split`: layers of the client's part in split learning; 0 is off (SplitFed).
    - `local_optimizer`: sgd, adam, adamw, or a custom LocalOptimizer.
    - `optimizer_state`: its state is zero at the start of each task (`reset`), or is kept for each client from one
      task to the next (`keep`).
    """

    lr: Positive = 0.05
    lr_schedule: str = "constant"
    momentum: Decay = 0.5
    batch_size: Count = 32
    epochs: Count = 5
    steps: Count | str | None = None
    weight_decay: NotNegative = 0.0
    clip: NotNegative = 0.0
    proximal: NotNegative = 0.0
    sam: NotNegative = 0.0
    fresh: Share = 1.0
    control: bool = False
    full_gradient: bool = False
    squares: bool = False
    adversary: bool = False
    label_masked: bool = False
    calibrate: UpToOne = 0.0
    compress: Any = "none"
    terms: tuple[Any, ...] = ()
    split: NonNegativeInt = 0
    full_rate: bool = False
    min_batch: Count = 1
    local_optimizer: Any = "sgd"
    optimizer_state: Literal["reset", "keep"] = "reset"

    @property
    def auto(self) -> AutoSteps | None:
        """How local steps follow from costs, if they do."""
        return AutoSteps.of(self.steps)

    @property
    def passes(self) -> int:
        """Forward-backward passes per step: SAM and the input adversary take one more each."""
        return 1 + bool(self.sam) + self.adversary

    @property
    def needs_whole_gradient(self) -> bool:
        """Whether a step looks at the gradient of all parameters at once, for its norm or to keep it."""
        own = any(LOCAL_TERM.make(term).whole for term in self.terms)
        return bool(self.sam or self.clip or self.full_gradient or self.squares or own)

    def minibatches(self, shard: Sizes) -> Sizes:
        """Return how many minibatches a pass over a shard of that size has; of one client, or of all at once."""
        whole, rest = shard // self.batch_size, shard % self.batch_size
        count: Sizes = whole + ((rest >= self.min_batch) | (whole == 0))
        return count

    def spans(self, shard: int) -> list[slice]:
        """Return the part of a shuffled shard that each minibatch of a pass takes."""
        starts = [number * self.batch_size for number in range(self.minibatches(shard))]
        return [slice(start, end) for start, end in zip(starts, [*starts[1:], shard], strict=True)]

    def samples(self, shard: int) -> int:
        """Training samples that one task processes in its steps on a shard of that size."""
        if self.steps is None:
            return self.epochs * shard
        assert isinstance(self.steps, int), "these follow from costs"
        epochs, rest = divmod(self.steps, self.minibatches(shard))
        return epochs * shard + rest * self.batch_size

    def passed_samples(self, shard: int) -> int:
        """Samples times passes, and the pass over the shard for the full-batch gradient."""
        return self.samples(shard) * self.passes + (shard if self.full_gradient else 0)

    def samples_in(self, steps: Ints, shard: Sizes) -> npt.NDArray[np.float64]:
        """Samples of so many steps, wherever in a pass over the shard they begin: with the mean of its minibatches.

        Of one client, or of all of them at once.
        """
        return np.asarray(steps * shard / self.minibatches(shard))

    def passed_in(self, steps: Ints, shard: Sizes) -> npt.NDArray[np.float64]:
        """The same times passes, and the pass over the shard for the full-batch gradient."""
        return np.asarray(self.samples_in(steps, shard) * self.passes + (shard if self.full_gradient else 0))

    def batches(self, shard: int) -> int:
        """Local steps that one task takes on a shard of that size."""
        if self.steps is None:
            return self.epochs * self.minibatches(shard)
        assert isinstance(self.steps, int), "these follow from costs"
        return self.steps
