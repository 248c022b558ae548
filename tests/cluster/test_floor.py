"""fedraa needs little more CPU time than bare loops. Both are measured alternately, because other programs run."""

import pytest

from benchmarks.system.throughput import measure_empty_updates, measure_rounds
from benchmarks.system.trials import synthetic_dataset

pytestmark = [pytest.mark.alone, pytest.mark.cluster, pytest.mark.usefixtures("cluster")]


def test_rounds_cost_little_more_than_the_bare_loop() -> None:
    figure = measure_rounds(synthetic_dataset(6000), 10, "mnist", repeats=1)
    assert figure.cpu is not None
    assert figure.cpu < 2


def test_empty_updates_cost_little_more_than_bare_calls() -> None:
    figure = measure_empty_updates(synthetic_dataset(500), "small", repeats=1, updates=400)
    assert figure.cpu is not None
    assert figure.cpu < 4
