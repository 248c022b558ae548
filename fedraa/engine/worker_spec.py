"""The description from which any process makes a worker: the model and local training, without the data."""

import os
from dataclasses import dataclass, field
from typing import Any

import torch

from fedraa.attacks.attack import AttackPlan
from fedraa.attacks.attacked_trainer import AttackedTrainer
from fedraa.attacks.backdoor import Backdoor
from fedraa.client.batched_trainer import BatchedTrainer
from fedraa.client.local_training import LocalTraining
from fedraa.client.model_settings import ModelSettings
from fedraa.client.task_trainer import TaskTrainer
from fedraa.client.trainer import Trainer
from fedraa.client.training_state import TrainingState
from fedraa.data import Transforms
from fedraa.data.sources.clients import Source
from fedraa.engine.freed_memory import keep_freed_memory
from fedraa.errors import InputError
from fedraa.evaluation.evaluator import Evaluator
from fedraa.evaluation.metrics import NamedMetric
from fedraa.evaluation.personal import EvaluationData, FineTuning, KeptModels, PersonalModels
from fedraa.objectives import Classification, Objective
from fedraa.privacy.local import LocallyPrivateTrainer
from fedraa.privacy.privacy import Privacy
from fedraa.submodels import Traced


@dataclass(frozen=True, eq=False)
class WorkerSpec:
    """A picklable description from which a worker makes its trainer and evaluator."""

    traced: Traced
    local: LocalTraining
    seed: int
    fragment_scale: bool
    bf16: bool = False
    stack: int = 1
    metrics: tuple[NamedMetric, ...] = ()
    objective: Objective = field(default_factory=Classification)
    transforms: Transforms = field(default_factory=Transforms)
    source: Source | None = None
    """The data source from which the worker reads clients' samples, or None if the samples come with the tasks."""
    scale_inner: bool = False
    label_shares: tuple[float, ...] | None = None
    """The share of each label in the data of all clients, if local training needs it."""
    state: TrainingState = field(default_factory=TrainingState)
    attack: AttackPlan | None = None
    privacy: Privacy | None = None
    kept_models: KeptModels | None = None
    """The personal models that clients keep, if the method has them."""

    def trainer(self, device: str) -> TaskTrainer:
        """Return the trainer of tasks, including the noise of local privacy and the attack of attackers."""
        keep_freed_memory()
        if device == "cuda":
            make_cuda_repeatable()
        trainer: TaskTrainer = self._make_trainer(device)
        if self.privacy is not None and self.privacy.local:
            trainer = LocallyPrivateTrainer(trainer, self.privacy, self.seed)
        if self.attack is None:
            return trainer
        return AttackedTrainer(trainer, self.attack)

    def _make_trainer(self, device: str) -> Trainer:
        model = ModelSettings(
            self.objective, self.state, self.fragment_scale, self.scale_inner, label_shares=self.label_shares
        )
        options = self._trainer_options(device) | {"model": model}
        if self.stack > 1:
            return BatchedTrainer(self.traced, self.local, self.stack, **options)
        return Trainer(self.traced, self.local, **options)

    def _trainer_options(self, device: str) -> dict[str, Any]:
        return {"seed": self.seed, "device": device, "bf16": self.bf16, "transforms": self.transforms}

    def evaluator(self, data: EvaluationData, device: str) -> Evaluator:
        personal: PersonalModels | None = self.kept_models
        trigger = None
        if self.attack is not None and isinstance(self.attack.attack, Backdoor):
            trigger = self.attack.attack
        if personal is None and data.personal:
            options = self._trainer_options(device) | {"model": ModelSettings(self.objective, self.state)}
            personal = FineTuning(self.traced, self.local, **options)
        return Evaluator(
            self.traced,
            data,
            device=device,
            metrics=self.metrics,
            objective=self.objective,
            personal=personal,
            state=self.state,
            trigger=trigger,
        )


def choose_device(device: str) -> str:
    """Return the torch device. `auto` is CUDA if available. Raise InputError for a missing device."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("device", "torch finds no CUDA device here", got=device, hint="use cpu or auto")
    return device


def make_cuda_repeatable() -> None:
    """Make this process use CUDA algorithms that give the same bits in every run.

    PyTorch warns about operations without such an algorithm. Call this before PyTorch first uses cuBLAS.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    # PyTorch would also fill new tensors, which takes time and only helps to find reads of uninitialised memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
