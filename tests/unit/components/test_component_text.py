"""Texts that are no component or no literal are refused."""

import pytest
from refusals import refuses

from fedraa import Experiment
from fedraa.config.overrides import read_overrides
from fedraa.settings.resolve import resolve_method


@pytest.mark.parametrize(
    "staleness",
    [
        "polynomial(exponent=2)(exponent=1)",
        {"kind": "polynomial(exponent=2)", "exponent": 1},
        "polynomial(exponent={[1]: 2})",
    ],
)
def test_component_with_two_pairs_of_brackets_or_an_impossible_value_is_refused(staleness: object) -> None:
    """The values of the first brackets were ignored. A value that Python cannot create ended with a traceback."""
    with refuses("staleness"):
        resolve_method(Experiment(method="fedasync", staleness=staleness))


@pytest.mark.parametrize("text", ["{[1]: 2}", "-" * 5000 + "1"], ids=["unhashable", "deep"])
def test_override_that_is_no_literal_stays_a_text(text: str) -> None:
    assert read_overrides(f"local.sam_rho={text}", ()) == {"local.sam_rho": text}
