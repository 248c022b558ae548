"""Run directories on Ray with any letters in their paths, and with bytes that are no letters."""

import os
from pathlib import Path
from typing import Any

import pytest

import fedraa as fl

pytestmark = pytest.mark.cluster


def test_a_run_directory_may_have_any_name(cluster: None, tmp_path: Path) -> None:
    small: dict[str, Any] = {"method": "fed-raa", "clients": 2, "updates": 4, "local_steps": 1, "hidden": (8,)}
    name = os.fsdecode("josé 日本 😀 'q\" %20{} \n".encode() + b"\xff" + b"a" * 200)
    on_ray = fl.run(workers=1, out=tmp_path / name / "ray", **small)
    local = fl.run(engine="local", out=tmp_path / name / "local", **small)
    assert on_ray.summary["model_sha256"] == local.summary["model_sha256"]
    assert (tmp_path / name / "ray" / "summary.json").exists()
    assert "consistent" in fl.replay(tmp_path / name / "ray")
