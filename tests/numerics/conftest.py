"""A traced model for the tests of policies."""

import pytest
import torch
from policy_draws import FIRST, SECOND
from torch import nn

from fedraa.submodels import Traced
from fedraa.submodels.tracing.trace import trace_module


@pytest.fixture(scope="module")
def net() -> Traced:
    torch.manual_seed(0)
    layers = nn.Linear(3, FIRST), nn.ReLU(), nn.Linear(FIRST, SECOND), nn.ReLU(), nn.Linear(SECOND, 2)
    return trace_module(nn.Sequential(*layers), torch.zeros(2, 3))
