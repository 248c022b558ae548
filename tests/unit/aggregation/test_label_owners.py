"""The rows of the output layer that a client may send, with HeteroFL's mask of labels."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from fedraa.aggregation.label_owners import LabelOwners
from fedraa.submodels.whole import take_whole


def plain(layer: nn.Module) -> nn.Module:
    return layer


@pytest.mark.parametrize("parametrize", [plain, parametrizations.weight_norm, parametrizations.spectral_norm])
def test_client_sends_no_parameter_of_the_output_row_of_a_label_that_it_lacks(parametrize: Any) -> None:
    """In a parametrized layer the bias comes before the weight, and a weight norm has one length per row."""
    model = nn.Sequential(nn.Linear(4, 5), nn.ReLU(), parametrize(nn.Linear(5, 3)))
    traced = take_whole(model, torch.zeros(2, 4))
    mask = LabelOwners(traced, np.array([[True, False, True]]))(0)
    for name, parameter in model.named_parameters():
        expected = np.ones(parameter.shape, bool)
        if name.startswith("2."):
            expected[1] = False
        np.testing.assert_array_equal(mask[traced.places[name]].reshape(parameter.shape), expected)
