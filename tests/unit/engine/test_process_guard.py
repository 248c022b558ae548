"""Runs in threads of one process take turns, and restore the settings of the process."""

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import nn

import fedraa as fl
from fedraa.engine.process_guard import exclusive_process

SMALL: dict[str, Any] = {"engine": "local", "quiet": True, "method": "fedavg", "clients": 3, "local_steps": 2}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Dropout(), nn.Linear(8, 10))


def settings() -> list[Any]:
    numpy = np.random.get_state()
    return [
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.get_deterministic_debug_mode(),
        torch.get_float32_matmul_precision(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_autocast_enabled("cpu"),
        torch.get_rng_state().tolist(),
        random.getstate(),
        numpy[1].tolist(),  # type: ignore[union-attr]
    ]


def test_runs_in_threads_equal_sequential_runs(tmp_path: Path) -> None:
    model = net()

    def run(name: str, seed: int) -> Any:
        fields = {**SMALL, "rounds": 1, "seed": seed, "out": tmp_path / f"{name}{seed}"}
        return fl.run(model=model, **fields).summary["model_sha256"]

    alone = [run("alone", seed) for seed in range(3)]
    before = settings()
    with ThreadPoolExecutor(3) as pool:
        together = [pool.submit(run, "thread", seed) for seed in range(3)]
        found = [future.result() for future in together]
    assert found == alone
    assert settings() == before


def test_failed_run_restores_the_settings_of_the_process(tmp_path: Path) -> None:
    class Failing(fl.Callback):
        def on_eval(self, *_: Any) -> None:
            torch.manual_seed(5)
            torch.set_default_dtype(torch.float64)
            torch.use_deterministic_algorithms(True)
            raise RuntimeError("mine")

    before = settings()
    with pytest.raises(RuntimeError, match="mine"):
        fl.run(callbacks=[Failing()], rounds=1, out=tmp_path / "run", **SMALL)
    assert settings() == before


@contextmanager
def default_dtype() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


@contextmanager
def low_precision() -> Iterator[None]:
    torch.set_float32_matmul_precision("medium")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


CALLERS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "default dtype": default_dtype,
    "low precision": low_precision,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no gradients": torch.no_grad,
    "inference": torch.inference_mode,
    "default device": lambda: torch.device("meta"),
}


@pytest.mark.parametrize("caller", CALLERS)
def test_settings_of_torch_of_the_caller_do_not_change_a_run(tmp_path: Path, caller: str) -> None:
    plain = fl.run(rounds=1, out=tmp_path / "plain", **SMALL).summary["model_sha256"]
    with CALLERS[caller]():
        before = settings()
        found = fl.run(rounds=1, out=tmp_path / "within", **SMALL).summary["model_sha256"]
        assert settings() == before
    assert found == plain


def test_a_run_inside_a_run_is_refused(tmp_path: Path) -> None:
    class Nested(fl.Callback):
        def on_eval(self, *_: Any) -> None:
            fl.run(rounds=1, out=tmp_path / "inner", **SMALL)

    with refuses("run"):
        fl.run(callbacks=[Nested()], rounds=1, out=tmp_path / "outer", **SMALL)
    assert not (tmp_path / "inner").exists()


def test_exclusive_process_admits_one_thread_at_a_time() -> None:
    within, most = 0, 0

    def enter(_: int) -> None:
        nonlocal within, most
        with exclusive_process(), exclusive_process():
            within += 1
            most = max(most, within)
            within -= 1

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(enter, range(50)))
    assert most == 1
