"""TensorBoard, Weights & Biases and MLflow with their real packages, offline, for a killed and resumed run."""

import json
import socket
from pathlib import Path

import numpy as np
import pytest

from benchmarks.system.killing import KillAt, Killed
from fedraa.api import resume, run
from fedraa.config.experiment import Experiment
from fedraa.rundir.history import History

METRICS = ("accuracy", "loss", "client_mean", "client_std", "client_worst", "t")
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run in an empty folder, where a connection to another machine fails the test."""
    connect = socket.socket.connect

    def connect_here(self: socket.socket, address: object) -> None:
        if isinstance(address, tuple):
            assert address[0] in LOOPBACK, f"a tracker connects to {address}"
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", connect_here)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)


def resumed_run(callback: str) -> History:
    """Return a run with this callback that is killed after two of its four evaluations, and resumed."""
    experiment = Experiment(
        engine="local",
        hidden=(8,),
        clients=4,
        local_steps=2,
        updates=16,
        eval_every=4,
        checkpoint_every=3,
        out=Path("run"),
    )
    with pytest.raises(Killed):
        run(experiment, callbacks=[callback, KillAt(9)])
    return resume(Path("run"), callbacks=[callback])


@pytest.mark.slow
def test_mlflow_run_equals_the_evaluations() -> None:
    client_kind = pytest.importorskip("mlflow").MlflowClient
    history = resumed_run("mlflow")
    client = client_kind(tracking_uri=f"sqlite:///{Path.cwd()}/mlflow.db")
    experiment = client.get_experiment_by_name("fedraa")
    (written,) = client.search_runs([experiment.experiment_id])
    for name in METRICS:
        points = client.get_metric_history(written.info.run_id, name)
        assert [point.step for point in points] == history.evals["step"].tolist()
        assert [point.value for point in points] == history.evals[name].tolist()
    assert written.info.status == "FINISHED"
    assert written.info.run_name == "run"
    assert written.data.params["local_steps"] == "2"
    assert written.data.tags["fedraa.reason"] == "steps"


@pytest.mark.slow
def test_mlflow_run_that_is_stopped_has_the_status_killed() -> None:
    client_kind = pytest.importorskip("mlflow").MlflowClient
    with pytest.raises(Killed):
        run(
            Experiment(engine="local", clients=4, local_steps=2, updates=16, out=Path("run")),
            callbacks=["mlflow", KillAt(9)],
        )
    client = client_kind(tracking_uri=f"sqlite:///{Path.cwd()}/mlflow.db")
    (written,) = client.search_runs([client.get_experiment_by_name("fedraa").experiment_id])
    assert written.info.status == "KILLED"


def test_tensorboard_scalars_equal_the_evaluations() -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator
    history = resumed_run("tensorboard")
    events = accumulator("tensorboard/run", size_guidance={"scalars": 0}).Reload()
    for name in METRICS:
        points = events.Scalars(name)
        assert [point.step for point in points] == history.evals["step"].tolist()
        expected = history.evals[name].to_numpy(np.float32).tolist()
        assert [point.value for point in points] == expected


def test_wandb_history_equals_the_evaluations() -> None:
    pytest.importorskip("wandb")
    history = resumed_run("wandb")
    rows: dict[int, dict[str, float]] = {}
    for folder in sorted(Path("wandb").glob("offline-run-*")):
        (file,) = folder.glob("run-*.wandb")
        rows |= read_history(file)
    assert sorted(rows) == history.evals["step"].tolist()
    for name in METRICS:
        assert [rows[step][name] for step in sorted(rows)] == history.evals[name].tolist()


def read_history(file: Path) -> dict[int, dict[str, float]]:
    """Return the logged values by step of an offline file: a header of 7 bytes, then records in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data = file.read_bytes()
    assert data[:4] == b":W&B"
    position = 7
    rows = {}
    partial = b""
    while position < len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length = int.from_bytes(data[position + 4 : position + 6], "little")
        kind = data[position + 6]
        partial += data[position + 7 : position + 7 + length]
        position += 7 + length
        # Kinds 2 and 3 are the first and middle parts of a longer record.
        if kind in (2, 3):
            continue
        record = Record.FromString(partial)
        partial = b""
        if record.WhichOneof("record_type") == "history":
            items = {
                (item.nested_key[0] if item.nested_key else item.key): item.value_json for item in record.history.item
            }
            values = {name: json.loads(text) for name, text in items.items()}
            rows[int(values["_step"])] = values
    return rows
