"""FedASMU: mix models with a weight that each client's loss adapts (Liu et al. 2024).

When w of client i arrives with staleness k, as update number t of the fragment:
    xi = lambda_i / sqrt(t) * (k + 1)^-sigma_i + iota_i
    a = mu * xi / (1 + mu * xi)
    theta <- (1 - a) * theta + a * w
    fall = loss of the client's last task on the fragment - loss of this task
    lambda_i <- lambda_i + rate * fall;  iota_i <- iota_i + rate * fall;  sigma_i <- sigma_i - rate * fall;  all >= 0

Only the server's part of the method is here. In the paper, a client also downloads a newer model in the middle of its
task and mixes it in.

Source: three implementations, none of which is by the authors. They agree on a. Two of them have (k + 1)^-sigma, and
one of these two cites the equation. The third has (k + 1)^(-sigma / 2). The paper adapts lambda, sigma and iota along
gradients. Here, as in these implementations, steps along the change of the loss replace the gradients.

Read next: methods/fedasync.py (a constant weight), server/async_rule.py (the interface of a rule).
"""

from dataclasses import dataclass
from math import isfinite, sqrt
from typing import ClassVar

import numpy as np

from fedraa.composition.method import PLAIN_SGD, Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.numbers import Count, NotNegative, Positive
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, AsyncRule, ClientUpdate
from fedraa.server.mixing import blend_weights
from fedraa.server.schedule import AsyncSchedule


@ASYNC_RULE.register("fedasmu")
@dataclass
class FedASMU(AsyncRule):
    """FedASMU (Liu et al. 2024): theta <- (1 - a) theta + a w, a = mu xi / (1 + mu xi).

    xi = lambda_i / sqrt(t) * (staleness + 1)^-sigma_i + iota_i, where t counts the updates of the fragment. If client
    i's training loss falls between two tasks on the same fragment, lambda_i and iota_i grow and sigma_i shrinks in
    proportion. Submodels that are drawn for every task count as one fragment. Clients do not download a newer model in
    the middle of a task.

    Attributes:
        mu: Factor of xi in the weight a.
        first_lambda: lambda_i at the start.
        first_sigma: sigma_i at the start.
        first_iota: iota_i at the start.
        rate: Change of lambda_i, sigma_i and iota_i per change of the loss; 0 keeps them constant.
        delay_limit: Updates of this staleness or more are ignored; None for no limit.
    """

    mu: Positive = 1.0
    first_lambda: Positive = 1.0
    first_sigma: NotNegative = 0.5
    first_iota: NotNegative = 0.0
    rate: NotNegative = 0.01
    delay_limit: Count | None = None

    keeps: ClassVar[str] = "lambda_i, sigma_i, iota_i [N], losses [M, N]"
    bounded_by_weight: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_controls", "_losses", "_versions")

    @property
    def uses_losses(self) -> bool:
        return self.rate > 0

    def start(self, model: AsyncModel) -> None:
        # lambda, sigma and iota of each client [N, 3].
        self._controls = np.tile((self.first_lambda, self.first_sigma, self.first_iota), (model.clients, 1))
        self._losses = np.full((model.fragments, model.clients), np.inf)
        self._versions = np.zeros(model.fragments, np.int64)

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        delay = update.staleness + 1
        if self.delay_limit is not None and delay > self.delay_limit:
            return ApplyResult(0.0, False)
        self._versions[update.fragment] += 1
        scale, decay, offset = self._controls[update.client].tolist()
        xi = scale / sqrt(self._versions[update.fragment]) * delay**-decay + offset
        weight = self.mu * xi / (1 + self.mu * xi)
        blend_weights(model.params, update.coordinates, update.new, weight)
        self._adapt(update)
        return ApplyResult(weight)

    def _adapt(self, update: ClientUpdate) -> None:
        """Adapt the client's lambda, sigma and iota to the change of its loss."""
        fall = float(self._losses[update.fragment, update.client]) - update.loss
        # `fall` is not finite after a client's first task on a fragment, and in `fedraa plan`, which trains nothing.
        if isfinite(fall):
            controls = self._controls[update.client] + self.rate * fall * np.array([1, -1, 1])
            self._controls[update.client] = np.maximum(controls, 0)
        self._losses[update.fragment, update.client] = update.loss


register(
    Method(
        name="fedasmu",
        paper="Liu et al. 2024",
        note="clients download no newer model during a task; lambda, sigma and iota follow the loss, not a gradient",
        formula=(
            "`theta ← (1 − a) theta + a w`, a = mu xi / (1 + mu xi), "
            "xi = lambda_i / sqrt(t) · (k + 1)^−sigma_i + iota_i at staleness k."
        ),
        when="As fedasync, if clients differ in how useful their stale models are.",
        local=PLAIN_SGD,
        update=FedASMU(),
        schedule=AsyncSchedule(),
        paper_settings=PaperSettings(
            source="implementations by others",
            values={"update.mu": 1.0, "update.first_lambda": 1.0, "update.first_sigma": 0.5, "update.rate": 0.01},
            unstated="the learning rate and the length of a task",
        ),
    )
)
