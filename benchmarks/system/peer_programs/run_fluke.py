"""Train the workload in fluke, in one process."""

import contextlib
from typing import Any

import torch

# Importing a torchvision for CUDA fails with PyTorch for CPUs unless these operators exist.
with contextlib.suppress(RuntimeError):
    torch.library.define("torchvision::nms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    torch.library.define("torchvision::qnms", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataContainer, DataSplitter
from fluke.utils import ServerObserver

from benchmarks.system.peer_programs.peer_work import Work, now, report


class Ends(ServerObserver):  # type: ignore[misc]
    """An observer of fluke's server that records when rounds end."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def end_round(self, round: int) -> None:
        self.ends.append(now())


def main() -> None:
    """Train all rounds. Report the time at which each round ended, and the final accuracy."""
    torch.set_num_threads(1)
    work = Work.read()
    FlukeENV().set_seed(0)
    FlukeENV().set_device("cpu")
    FlukeENV().set_inmemory(True)
    # By default fluke evaluates after each round. The other frameworks do not, so turn these evaluations off.
    FlukeENV().set_eval_cfg(server=False, pre_fit=False, post_fit=False, locals=False)
    arrays = [torch.from_numpy(work.array(name)) for name in ("x_train", "y_train", "x_test", "y_test")]
    settings: dict[str, Any] = {
        "client": {
            "batch_size": work.batch,
            "local_epochs": work.epochs,
            "loss": torch.nn.CrossEntropyLoss,
            "optimizer": {"name": torch.optim.SGD, "lr": work.lr},
            "scheduler": {"name": "StepLR", "step_size": 1, "gamma": 1.0},
            "persistency": False,
        },
        "server": {"weighted": True},
        "model": work.make_model(),
    }
    algorithm = FedAVG(work.clients, DataSplitter(DataContainer(*arrays, 10)), DDict(settings))
    observer = Ends()
    algorithm.server.attach(observer)
    algorithm.attach(observer)
    algorithm.run(work.rounds, work.cohort / work.clients, finalize=False)
    report(observer.ends, work.accuracy(algorithm.server.model))


if __name__ == "__main__":
    main()
