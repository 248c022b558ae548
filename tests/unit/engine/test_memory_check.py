"""What cannot fit is refused before the start, with the numbers and what would fit."""

import re

import pytest

from fedraa.config.experiment import Experiment
from fedraa.engine.build import build
from fedraa.engine.memory_check import CONTEXT, PROCESS, Free, Need, check


def test_a_small_run_fits_this_machine() -> None:
    check(build(Experiment()))


def test_the_memory_of_ram_fed_is_one_model_per_client() -> None:
    """4 bytes x d x (clients + 3), ALGORITHMS: an update remembered per client, their mean, change and count."""
    spec = build(Experiment(method="ram-fed", clients=100))
    d = spec.params.size
    assert Need.of(spec).server == 4 * d * (100 + 3) + 3 * 4 * d


def test_ram_fed_with_too_many_clients_is_told_how_many_fit() -> None:
    spec = build(Experiment(method="ram-fed", clients=100, workers=1))
    need = Need.of(spec)
    room = need.data + need.worker + need.server
    check(spec, Free(room, None))
    with pytest.raises(
        ValueError, match=r"^memory: the server of ram-fed needs .* GB for 100 clients, .*; --clients"
    ) as e:
        check(spec, Free(room - need.server / 2, None))
    few = int(re.findall(r"--clients (\d+) would fit", str(e.value))[0])
    assert 40 <= few <= 60
    check(build(Experiment(method="ram-fed", clients=few, workers=1)), Free(room - need.server / 2, None))


def test_a_model_that_never_fits_is_told_so() -> None:
    with pytest.raises(ValueError, match=r"; take a smaller model or a larger machine$"):
        check(build(Experiment(method="fedavg")), Free(PROCESS / 2, None))


def test_too_many_workers_are_told_how_many_fit() -> None:
    spec = build(Experiment(workers=8))
    need = Need.of(spec)
    free = Free(need.server + need.data + 3.5 * need.worker, None)
    with pytest.raises(ValueError, match=r"^workers: 8 need 0\.2\d* GB each, .* GB are free; 3 would fit$"):
        check(spec, free)
    check(build(Experiment(workers=3)), free)


def test_too_many_workers_for_the_gpu_are_told_how_many_fit() -> None:
    spec = build(Experiment(workers=4))
    with pytest.raises(
        ValueError, match=r"^workers: 4 need 0\.4\d* GB of the GPU each, which has 1 GB free; 2 would fit$"
    ):
        check(spec, Free(1e12, 1e9))
    with pytest.raises(ValueError, match=r"; --device cpu would fit$"):
        check(spec, Free(1e12, CONTEXT / 2))
