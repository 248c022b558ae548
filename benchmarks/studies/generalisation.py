"""Metrics of a final model: results on the training data, and flatness of the loss around the model."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

from benchmarks.studies.metrics import PERCENT, Metric
from fedraa.engine.build import build_run
from fedraa.rundir.file_names import MODEL
from fedraa.rundir.history import History

BATCH = 1024
# At most MAX_SAMPLES training samples are evaluated. If there are more, evenly spaced samples are taken.
MAX_SAMPLES = 10_000
FLATNESS_SAMPLES = 1000
# The power iteration ends if the eigenvalue changes by less than this fraction, or after this number of steps.
EIGENVALUE_CHANGE, MAX_POWER_STEPS = 1e-3, 100
# Flatness is measured with PERTURBATIONS random vectors. Their norm is PERTURBATION_NORM times that of the parameters.
PERTURBATION_NORM, PERTURBATIONS = 0.1, 10


# Several metrics of a run call this function. The cache avoids a second evaluation.
@lru_cache(maxsize=1)
def evaluate_on_training_data(directory: Path) -> tuple[float, float]:
    """Return the mean cross-entropy and the accuracy of a run's final model on training samples."""
    module, inputs, labels = _load_model_and_samples(directory, MAX_SAMPLES)
    loss = correct = 0.0
    with torch.inference_mode():
        for batch in range(0, len(labels), BATCH):
            wanted = labels[batch : batch + BATCH]
            logits = module(inputs[batch : batch + BATCH])
            loss += float(F.cross_entropy(logits, wanted, reduction="sum"))
            correct += int((logits.argmax(1) == wanted).sum())
    return loss / len(labels), correct / len(labels)


def _load_model_and_samples(directory: Path, samples: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return the final model in evaluation mode, and evenly spaced training samples (inputs, labels)."""
    spec = build_run(History(directory).experiment)
    module = spec.traced.module
    module.load_state_dict(torch.load(directory / MODEL, weights_only=True), assign=True)
    module.eval()
    dataset = spec.data.dataset
    rows = np.linspace(0, len(dataset.y_train) - 1, min(samples, len(dataset.y_train))).astype(np.int64)
    return module, torch.from_numpy(dataset.x_train[rows]), torch.from_numpy(dataset.y_train[rows])


@lru_cache(maxsize=1)
def measure_flatness(directory: Path) -> tuple[float, float]:
    """Return the Hessian's largest eigenvalue, and the mean rise of the training loss under perturbations.

    Power iteration finds the eigenvalue of largest magnitude. Perturbations are random. Their norm is PERTURBATION_NORM
    times the norm of the parameters. Models of equal shape get equal perturbations.
    """
    module, inputs, labels = _load_model_and_samples(directory, FLATNESS_SAMPLES)
    params = [param.detach().requires_grad_() for param in module.parameters()]
    names = [name for name, _ in module.named_parameters()]

    def loss_at(values: Sequence[torch.Tensor]) -> torch.Tensor:
        logits = functional_call(module, dict(zip(names, values, strict=True)), (inputs,))
        return F.cross_entropy(logits, labels)

    loss = loss_at(params)
    gradient = torch.autograd.grad(loss, params, create_graph=True)
    random = torch.Generator().manual_seed(0)
    eigenvalue = find_largest_eigenvalue(
        lambda vector: torch.autograd.grad(gradient, params, vector, retain_graph=True), draw_direction(params, random)
    )
    norm = float(torch.cat([param.detach().flatten() for param in params]).norm())
    rises = []
    with torch.no_grad():
        for _ in range(PERTURBATIONS):
            step = draw_direction(params, random)
            moved = [param + PERTURBATION_NORM * norm * part for param, part in zip(params, step, strict=True)]
            rises.append(float(loss_at(moved) - loss))
    return eigenvalue, float(np.mean(rises))


def find_largest_eigenvalue(
    multiply: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]], start: Sequence[torch.Tensor]
) -> float:
    """Return the eigenvalue of largest magnitude of a symmetric matrix, by power iteration.

    `multiply` returns the product of the matrix and a vector. `start` is the first vector, of norm 1.
    """
    vector, eigenvalue = start, math.inf
    for _ in range(MAX_POWER_STEPS):
        product = multiply(vector)
        last, eigenvalue = eigenvalue, float(sum((a * b).sum() for a, b in zip(vector, product, strict=True)))
        if abs(eigenvalue - last) <= EIGENVALUE_CHANGE * abs(eigenvalue):
            break
        vector = _normalise(product)
    return eigenvalue


def draw_direction(like: Sequence[torch.Tensor], random: torch.Generator) -> list[torch.Tensor]:
    """Return normally distributed tensors with the shapes of `like`. Together they have the norm 1."""
    return _normalise([torch.randn(part.shape, generator=random) for part in like])


def _normalise(vector: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    norm = torch.cat([part.flatten() for part in vector]).norm().clamp_min(torch.finfo(torch.float32).tiny)
    return [part / norm for part in vector]


def _loss_gap(history: History) -> float:
    return float(history.evals["loss"].iloc[-1]) - evaluate_on_training_data(history.directory)[0]


def _accuracy_gap(history: History) -> float:
    return 100 * (evaluate_on_training_data(history.directory)[1] - float(history.evals["accuracy"].iloc[-1]))


TRAIN_ACCURACY = Metric(
    "train accuracy %", lambda history: 100 * evaluate_on_training_data(history.directory)[1], within=PERCENT
)
LOSS_GAP = Metric("loss gap", _loss_gap, "less", ".3f", within=(-math.inf, math.inf))
ACCURACY_GAP = Metric("accuracy gap %", _accuracy_gap, "less", within=(-100.0, 100.0))
EIGENVALUE = Metric(
    "largest Hessian eigenvalue", lambda history: measure_flatness(history.directory)[0], "less", own_units=True
)
PERTURBED = Metric(
    "loss rise by perturbation", lambda history: measure_flatness(history.directory)[1], "less", ".2g", own_units=True
)
