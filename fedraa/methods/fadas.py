"""FADAS: an adaptive step along the mean of K deltas, shorter if one of them is stale (Wang et al. 2024).

When delta arrives with staleness k:
    buffer += delta;  k_max = max(k_max, k)
    if the buffer holds K deltas:
        eta = server_lr / k_max if k_max > delay_limit, else server_lr
        AMSGrad step of length eta along buffer / K;  buffer = 0;  k_max = 0

Read next: methods/fedbuff.py (the buffer), server/optimizers.py (AMSGrad), server/async_server.py (the server).
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from fedraa.client.local_training import LocalTraining
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.errors import InputError
from fedraa.messages import Vector
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.numbers import Count
from fedraa.server.async_rule import ASYNC_RULE, ApplyResult, AsyncModel, ClientUpdate
from fedraa.server.optimizers import AmsGrad
from fedraa.server.schedule import AsyncSchedule


@ASYNC_RULE.register("fadas")
@dataclass
class Fadas(FedBuffRule):
    """FADAS (Wang et al. 2024): a step of AMSGrad along the mean delta of every `size` client updates.

    If the largest staleness of these updates, in server steps, exceeds `delay_limit`, the length of the step is divided
    by this staleness.

    Attributes:
        size: Number of client updates per step.
        staleness: The weight of a delta in the mean, as a function of its staleness.
        optimizer: The server optimizer that takes the step.
        delay_limit: Largest staleness that does not shorten the step.
    """

    size: Count = 5
    staleness: Any = "constant"
    optimizer: Any = field(default_factory=AmsGrad)
    delay_limit: Count = 1

    adds_noise: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_worst",)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer is None:
            raise InputError("optimizer", got=None, expected="a server optimizer, such as amsgrad")

    def start(self, model: AsyncModel) -> None:
        super().start(model)
        self._worst = 0

    def apply_update(self, update: ClientUpdate, model: AsyncModel) -> ApplyResult:
        self._worst = max(self._worst, update.staleness)
        result = super().apply_update(update, model)
        if result.new_version:
            self._worst = 0
        return result

    def _apply_buffer(self, params: Vector, weight: float) -> None:
        assert self._stepping is not None
        self._stepping.server_lr = self.optimizer.server_lr
        if self._worst > self.delay_limit:
            self._stepping.server_lr /= self._worst
        super()._apply_buffer(params, weight)


register(
    Method(
        name="fadas",
        paper="Wang et al. 2024 (FADAS)",
        note="AMSGrad without bias correction",
        formula=(
            "AMSGrad along the mean delta of K updates; if the largest staleness among them exceeds delay_limit, the "
            "step is divided by this staleness."
        ),
        when="Coordinates of the model need steps of very different length, as in transformers.",
        local=LocalTraining(momentum=0.0, weight_decay=1e-4),
        update=Fadas(),
        schedule=AsyncSchedule(),
        paper_settings=PaperSettings(
            source="authors' code, CIFAR-10, delay-adaptive",
            values={
                "lr": 0.1,
                "momentum": 0.0,
                "weight_decay": 1e-4,
                "local_epochs": 2,
                "batch_size": 50,
                "buffer_size": 5,
                "server_lr": 1e-3,
                "update.delay_limit": 1,
            },
        ),
    )
)
