"""The loss landscape of a report, against losses in closed form."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from fedraa.report.landscape import measure_sharpness, measure_surface


def softmax_regression() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    """Return a model, a sample and its label. The loss is softplus(-m) for the margin m = (w0 - w1) x + b0 - b1."""
    module = nn.Linear(3, 2)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.5, -1.0, 2.0], [0.1, 0.3, -0.2]]))
        module.bias.copy_(torch.tensor([0.2, -0.1]))
    return module, torch.tensor([[1.0, 2.0, -1.0]]), torch.tensor([0])


def test_sharpness_equals_the_closed_form_of_softmax_regression() -> None:
    # The worst step moves (w0, b0) against (x, 1) and (w1, b1) along it, by rho / sqrt 2 each. It lowers the margin
    # by sqrt 2 rho |(x, 1)| = sqrt 2 * 0.3 * sqrt 7. The margin is 0.4 - 2.6 - 2.2 + 0.3 = -4.1.
    rise = 4.1 + math.sqrt(2) * 0.3 * math.sqrt(7)
    expected = math.log1p(math.exp(rise)) - math.log1p(math.exp(4.1))
    assert measure_sharpness(*softmax_regression(), rho=0.3) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("shape", [(2,), (0, 3), (3, 0)])
def test_landscape_ignores_parameters_that_the_model_does_not_use(shape: tuple[int, ...]) -> None:
    module, x, y = softmax_regression()
    expected = measure_sharpness(module, x, y)
    module.register_parameter("unused", nn.Parameter(torch.ones(shape)))
    assert measure_sharpness(module, x, y) == expected
    assert np.isfinite(measure_surface(module, x, y, points=3).loss).all()


def test_landscape_directions_have_the_norms_of_the_filters() -> None:
    module, x, y = softmax_regression()
    loaded = measure_surface(module, x, y, radius=1.0, points=3)
    assert loaded.loss[1, 1] == pytest.approx(math.log1p(math.exp(4.1)), rel=1e-5)
    # Rows move by at most twice their norm, and biases do not move. The margin moves by at most this times |x|.
    bound = 2 * sum(module.weight.norm(dim=1).tolist()) * math.sqrt(6)
    assert np.abs(loaded.loss - loaded.loss[1, 1]).max() <= bound
    # The filters of a model of zeros have no length, so that the surface is flat.
    with torch.no_grad():
        module.weight.zero_()
    assert np.ptp(measure_surface(module, x, y, points=3).loss) == 0
