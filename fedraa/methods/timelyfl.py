"""TimelyFL: slow clients train a part of the model, so that all clients report in one interval (Zhang et al. 2023).

T = k-th smallest modelled time of a task on the whole model, over all N clients; k = ceil(on_time * N)
Round, client n with time t_n:
    s_n = min(T / t_n, 1)
    train as many of the last layers as the share s_n of the work allows; all other layers keep their received values
Server, for each layer: theta <- mean of w_n over all clients of the round  # w_n has old values in untrained layers

The paper (arXiv 2304.06947) has no public code. fedraa decided two details: a client trains the last layers, and all
clients have equal weights in the mean. The paper also lets a fast client run more local epochs within T, which this
method does not do.

Read next: submodels/policies/last_layers.py (the layers), aggregation/coverage_mean.py (the mean).
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedraa.aggregation.coverage_mean import FilledMean
from fedraa.composition.method import NO_PAPER, PLAIN_SGD, Method
from fedraa.composition.registry import register
from fedraa.numbers import Share, round_up
from fedraa.server.round_update import Mean
from fedraa.submodels.policies import SUBMODEL
from fedraa.submodels.policies.last_layers import LayerAssignments
from fedraa.submodels.policies.policy import Pure, RunContext, SubmodelPolicy, SubmodelSampler


@SUBMODEL.register("within-interval")
@dataclass(frozen=True)
class WithinInterval(SubmodelPolicy):
    """The last layers that a client can train within the time of the k-th fastest client (TimelyFL).

    Attributes:
        on_time: k / N: the share of all clients that train the whole model.
    """

    on_time: Share = 0.5

    full_width: ClassVar[bool] = True
    cuts: ClassVar[bool] = False

    def bind(self, run: RunContext) -> SubmodelSampler:
        layers = LayerAssignments(run)
        assert run.durations is not None
        durations = run.durations()
        interval = np.sort(durations)[round_up(self.on_time * len(durations)) - 1]
        shares = np.minimum(interval / durations, 1.0)
        return Pure(lambda context: layers.within(float(shares[context.client])))


register(
    Method(
        name="timelyfl",
        paper="Zhang et al. 2023",
        note="fast devices run no additional epochs; fedraa chose the layers and the weights",
        formula="T is the time of the k-th fastest client; slower clients train only the last layers that fit into T.",
        when="All devices should take part in every round, without a long wait for slow devices.",
        submodel=WithinInterval(),
        local=PLAIN_SGD,
        update=Mean(aggregator=FilledMean()),
        paper_settings=NO_PAPER,
    )
)
