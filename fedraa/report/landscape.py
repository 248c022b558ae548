"""The loss around a trained model: a surface in two random directions, and the sharpness."""

import copy
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedraa.engine.build import build_run
from fedraa.engine.worker_spec import choose_device
from fedraa.errors import InputError
from fedraa.messages import Floats
from fedraa.objectives.builtin import has_cross_entropy
from fedraa.reading.regular_files import open_regular_file
from fedraa.rundir.file_names import MODEL
from fedraa.rundir.history import History

# Number of test samples on which the loss is measured.
SAMPLES = 1024
RADIUS, POINTS = 1.0, 15
RHO, ASCENT_STEPS = 0.05, 20


@dataclass(frozen=True)
class Surface:
    """The mean cross-entropy on test data around a model theta.

    Attributes:
        x: Coordinates [points] along the first direction.
        y: Coordinates [points] along the second direction.
        loss: Losses [points, points]; `loss[i, j]` is the loss at theta + x[j] first + y[i] second.
    """

    x: Floats
    y: Floats
    loss: Floats


def load_model_and_samples(history: History) -> tuple[nn.Module, Tensor, Tensor]:
    """Return a run's final model in evaluation mode, and random samples of its test data.

    Raises ValueError if the configuration cannot recreate the run, for example because its model is custom.
    """
    objects = history.config.get("given")
    if objects:
        raise InputError(
            "landscape",
            f"{history.directory} does not hold the objects of the run: {', '.join(objects)}",
            hint="leave --landscape out",
        )
    spec = build_run(history.experiment)
    if not has_cross_entropy(spec.objective) or not isinstance(spec.example, Tensor):
        problem = f"{history.directory} learns {spec.objective.name}"
        raise InputError("landscape", problem, expected="classification with cross-entropy")
    module = copy.deepcopy(spec.traced.module)
    try:
        with open_regular_file(history.directory / MODEL) as stream:
            module.load_state_dict(torch.load(stream, weights_only=True), assign=True)
    # For a damaged file, PyTorch raises errors of many types.
    except Exception:
        path = history.directory / MODEL
        problem = f"{path} does not hold the {history.experiment.model} of the run's configuration"
        raise InputError("landscape", problem) from None
    dataset = spec.data.dataset
    chosen = np.random.default_rng(0).permutation(len(dataset.y_test))[:SAMPLES]
    x = torch.from_numpy(dataset.x_test[chosen])
    y = torch.from_numpy(dataset.y_test[chosen])
    device = choose_device("auto")
    return module.to(device).eval(), x.to(device), y.to(device)


def measure_surface(
    module: nn.Module, x: Tensor, y: Tensor, *, radius: float = RADIUS, points: int = POINTS
) -> Surface:
    """Return the loss on a square around the model, in two random directions.

    A filter is a row of a weight. Each filter of a direction is scaled to the norm of the same filter of the model (Li
    et al. 2018, section 4). Biases and normalisation layers do not change.

    Args:
        module: The model in evaluation mode.
        x: The inputs.
        y: The labels.
        radius: Half of the side of the square. A step of length 1 along a direction changes a filter by a vector with
            the norm of the filter.
        points: Number of points in each direction.
    """
    generator = torch.Generator().manual_seed(0)
    first, second = (_draw_direction(module, generator) for _ in range(2))
    along = np.linspace(-radius, radius, points)
    loss = np.empty((points, points))
    with torch.inference_mode():
        for i, b in enumerate(along.tolist()):
            for j, a in enumerate(along.tolist()):
                moved = {name: p + a * first[name] + b * second[name] for name, p in module.named_parameters()}
                loss[i, j] = _mean_loss(module, moved, x, y).item()
    return Surface(along, along, loss)


def measure_sharpness(module: nn.Module, x: Tensor, y: Tensor, *, rho: float = RHO, steps: int = ASCENT_STEPS) -> float:
    """Return the largest increase of the loss that gradient ascent finds within the distance `rho`.

    The result is a lower bound of max L(theta + e) - L(theta) over |e| <= rho (Foret et al. 2021, eq. 1). Each step
    goes from the model to the edge of the ball, along the gradient at the previous point.

    Args:
        module: The model in evaluation mode.
        x: The inputs.
        y: The labels.
        rho: The radius of the ball.
        steps: The number of ascent steps.
    """
    here = {name: p.detach() for name, p in module.named_parameters()}
    start = _mean_loss(module, here, x, y).item()
    worst = start
    offset = {name: torch.zeros_like(p) for name, p in here.items()}
    for _ in range(steps):
        leaves = {name: (here[name] + offset[name]).requires_grad_() for name in here}
        loss = _mean_loss(module, leaves, x, y)
        gradients = torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True)
        norm = torch.stack([g.norm() for g in gradients]).norm()
        if norm == 0:
            break
        offset = {name: rho * g / norm for name, g in zip(here, gradients, strict=True)}
        moved = {name: here[name] + offset[name] for name in here}
        worst = max(worst, _mean_loss(module, moved, x, y).item())
    return worst - start


def _draw_direction(module: nn.Module, generator: torch.Generator) -> dict[str, Tensor]:
    """Return a random direction. Each of its filters has the norm of the model's filter in the same place."""
    direction = {}
    for name, p in module.named_parameters():
        if p.ndim < 2:
            direction[name] = torch.zeros_like(p)
            continue
        d = torch.randn(p.shape, generator=generator).to(p.device)
        scale = p.detach().flatten(1).norm(dim=1) / d.flatten(1).norm(dim=1)
        direction[name] = d * scale.reshape(-1, *[1] * (p.ndim - 1))
    return direction


def _mean_loss(module: nn.Module, params: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(torch.func.functional_call(module, params, (x,)), y)
