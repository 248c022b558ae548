"""The start of a private cluster is retried in a new folder. After the last try it fails with one error."""

import os
from pathlib import Path
from typing import Any

import pytest
import ray
from refusals import refuses

from actors.cluster import own_cluster
from fedraa.errors import RunFailed


class Starts:
    """A replacement of `ray.init` that fails at first. It records the folder of each start."""

    def __init__(self, failures: int) -> None:
        self.failures, self.folders, self.gone = failures, list[Path](), list[bool]()

    def __call__(self, *, _temp_dir: str, **options: Any) -> None:
        self.gone += [not folder.exists() for folder in self.folders[-1:]]
        folder = Path(_temp_dir)
        folder.mkdir()
        (folder / "half").write_text("started")
        self.folders.append(folder)
        if len(self.folders) <= self.failures:
            raise RuntimeError(f"\n  attempt {len(self.folders)}: the GCS gave no answer\n  and pages more")


def starting(failures: int, monkeypatch: pytest.MonkeyPatch, load: float = 1.0) -> Starts:
    starts = Starts(failures)
    monkeypatch.setattr(ray, "init", starts)
    monkeypatch.setattr(own_cluster, "RETRY_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(own_cluster, "load_factor", lambda: load)
    return starts


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_failed_cluster_start_is_retried_in_a_new_folder(
    failures: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    starts = starting(failures, monkeypatch)
    with own_cluster.own_cluster(1):
        assert starts.folders[-1].exists()
    assert len(set(starts.folders)) == failures + 1
    assert all(starts.gone)
    assert not starts.folders[-1].parent.exists()
    assert len(caplog.records) == failures
    for number, record in enumerate(caplog.records, 1):
        assert record.getMessage().startswith("engine: ")
        assert f" attempt {number}: " in record.getMessage()
        assert record.getMessage().endswith(f" {number + 1} of 3")


@pytest.mark.parametrize(("load", "tries"), [(1.0, 3), (4.6, 6), (50.0, 10)])
def test_cluster_start_fails_after_more_tries_under_more_load(
    load: float, tries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = starting(99, monkeypatch, load)
    with refuses("engine", f"attempt {tries}: ", "--engine local", error=RunFailed), own_cluster.own_cluster(1):
        raise AssertionError("it should not have started")
    assert len(starts.folders) == tries
    assert not any(folder.parent.exists() for folder in starts.folders)


def test_prestarted_cluster_is_used_once_and_ended_after_use(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = starting(0, monkeypatch)
    with own_cluster.prestart_cluster(1):
        with own_cluster.own_cluster(1):
            assert len(starts.folders) == 1
        assert not starts.folders[0].parent.exists()
        with own_cluster.own_cluster(1):
            assert len(starts.folders) == 2


@pytest.mark.parametrize(
    "theirs", [{"RAY_AUTH_TOKEN_PATH": "/no/such/file"}, {"RAY_AUTH_TOKEN": ""}, {"RAY_AUTH_TOKEN": "0" * 64}, {}]
)
def test_private_cluster_has_a_new_token_whatever_the_environment_says(
    theirs: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    starting(0, monkeypatch)
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in theirs.items():
        monkeypatch.setenv(name, value)
    before = dict(os.environ)
    with own_cluster.own_cluster(1):
        token = os.environ["RAY_AUTH_TOKEN"]
    assert len(token) == 64
    assert token not in theirs.values()
    assert dict(os.environ) == before


def test_unused_prestarted_cluster_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    starts = starting(0, monkeypatch)
    with own_cluster.prestart_cluster(1):
        assert starts.folders[0].exists()
    assert not starts.folders[0].parent.exists()
    with own_cluster.own_cluster(1):
        assert len(starts.folders) == 2


def test_unused_prestarted_cluster_does_not_count_as_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    starting(0, monkeypatch)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    with own_cluster.prestart_cluster(1):
        monkeypatch.setattr(ray, "is_initialized", lambda: True)
        assert not own_cluster.is_joined()
        with own_cluster.own_cluster(1):
            assert own_cluster.is_joined()
