"""Cuts do not damage the heap on a CPU with AVX2 and without AVX-512. oneDNN can limit a larger CPU to AVX2."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.system.convolutions import child_environment

CHILD = Path(__file__).with_name("cuts_in_channels_last.py")
ROOT = Path(__file__).parents[2]
STRIDED = ("resnet18", "resnet50", "regnet_x_400mf", "regnet_y_400mf")
UNSTRIDED = ("mobilenet_v3_small",)
BLOCK = 16


def check_cuts(network: str, cuts: int) -> None:
    environment = child_environment("AVX2") | {"ONEDNN_VERBOSE": "1", "PYTHONPATH": str(ROOT)}
    child = subprocess.run(
        [sys.executable, str(CHILD), network, str(cuts)], env=environment, capture_output=True, text=True
    )
    assert child.returncode == 0, (child.returncode, child.stderr[-2000:])
    calls = [line for line in child.stdout.splitlines() if "backward_weights" in line]
    assert calls
    # oneDNN gets no narrow strided pointwise convolution in the backward pass, not even one that it would compute
    # correctly.
    strided = [re.search(r"_ic(\d+)oc\d+_ih\S*kh1sh[2-9]\S*kw1sw[2-9]", line) for line in calls]
    assert [match[0] for match in strided if match and int(match[1]) < BLOCK] == []
    count = int(child.stdout.split("narrow inputs: ")[1].split()[0])
    assert (count > 0) == (network in STRIDED)


def test_cuts_of_resnet18_do_not_damage_the_heap() -> None:
    check_cuts("resnet18", 2)


@pytest.mark.slow
@pytest.mark.parametrize("network", [*STRIDED, *UNSTRIDED])
def test_ten_cuts_of_a_network_do_not_damage_the_heap(network: str) -> None:
    check_cuts(network, 10)
