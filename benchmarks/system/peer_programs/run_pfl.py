"""Train the workload in pfl-research, in one process or in several that torchrun starts."""

from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.internal.ops.selector import get_default_framework_module
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel

from benchmarks.system.peer_programs.peer_work import WithLoss, Work, now, report


class Ends(TrainingProcessCallback):  # type: ignore[misc]
    """A callback of pfl-research that records when rounds end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def after_central_iteration(self, metrics: Any, model: Any, *, central_iteration: int) -> Any:
        self.ends.append(now())
        return False, Metrics()


def main() -> None:
    """Train all rounds. Report the time at which each round ended, and the final accuracy."""
    torch.set_num_threads(1)
    work = Work.read()
    model = WithLoss(work.make_model())
    data = {client: PyTorchTensorDataset(work.client(client)) for client in range(work.clients)}
    # pfl-research asks the sampler for one client at a time, so a round's clients are drawn in advance.
    rng = np.random.default_rng(0)
    queue: list[int] = []

    def next_client() -> int:
        if not queue:
            queue.extend(work.draw_cohort(rng))
        return queue.pop()

    ends = Ends()
    pfl_model = PyTorchModel(model, torch.optim.SGD, torch.optim.SGD(model.parameters(), lr=1.0))
    FederatedAveraging().run(
        NNAlgorithmParams(work.rounds, 10**9, work.cohort, None),
        SimulatedBackend(training_data=FederatedDataset(lambda client: data[client], next_client), val_data=None),
        pfl_model,
        NNTrainHyperParams(work.batch, work.epochs, work.lr),
        callbacks=[ends],
        send_metrics_to_platform=False,
    )
    rank = get_default_framework_module().distributed.global_rank
    if torch.distributed.is_initialized():
        # Wait for all processes. If a process ended before the others, it would abort with an error.
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
    if rank == 0:
        report(ends.ends, work.accuracy(model.model))


if __name__ == "__main__":
    main()
