"""The results per client and the data partition in a run directory, against plain code."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

import fedraa as fl
from benchmarks.system.killing import KillAt, Killed
from fedraa.client.trainer import Trainer
from fedraa.engine.build import build_run
from fedraa.errors import Inconsistent
from fedraa.messages import Task, Update
from fedraa.rundir.file_names import CLIENTS, PARTITION

RNG = np.random.default_rng(2)
X, X_TEST = RNG.normal(size=(120, 3)).astype(np.float32), RNG.normal(size=(60, 3)).astype(np.float32)
MATRIX = RNG.normal(size=(3, 4))
Y, Y_TEST = (X @ MATRIX).argmax(axis=1), (X_TEST @ MATRIX).argmax(axis=1)
DATA = fl.Dataset("tiny", X, Y, X_TEST, Y_TEST, 4)
SMALL: dict[str, Any] = {"engine": "local", "clients": 5, "local_steps": 2, "seed": 3, "quiet": True}
SMALL |= {"partition": "dirichlet", "lr": 0.3}


# A name that tables usually read as a missing value.
NA = "NA"


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 6), nn.ReLU(), nn.Linear(6, 4))


def execute(out: Path, dataset: Any = DATA, **fields: Any) -> fl.History:
    return fl.run(fl.Experiment(**SMALL | {"updates": 17} | fields, out=out), model=model(), dataset=dataset)


def test_final_client_results_equal_plain_pytorch(tmp_path: Path) -> None:
    history = execute(tmp_path / "run", client_evals="final")
    module = history.load_model(model())
    commits = Counter(line["client"] for line in history.lines() if line["kind"] == "commit")
    found = history.clients
    assert found["client"].tolist() == list(range(5))
    assert set(found["step"]) == {17}
    for row in found.itertuples():
        mine = history.partition.test[row.client]
        x, y = torch.from_numpy(X_TEST[mine]), torch.from_numpy(Y_TEST[mine])
        with torch.inference_mode():
            logits = module(x)
        assert row.accuracy == pytest.approx(float((logits.argmax(1) == y).double().mean()))
        assert row.loss == pytest.approx(float(cross_entropy(logits, y)), rel=1e-5)
        assert (row.test_samples, row.updates, row.quarantined, row.name) == (len(mine), commits[row.client], "", "")
        assert row.samples == len(history.partition.train[row.client])
    last = history.evals.iloc[-1]
    assert found["accuracy"].mean() == pytest.approx(last["client_mean"])
    assert found["accuracy"].min() == pytest.approx(last["client_worst"])
    fl.replay(tmp_path / "run")


@pytest.mark.parametrize(
    ("selected", "steps"), [("final", [17]), ("all", [0, 5, 10, 15, 17]), (2, [0, 10, 17]), (3, [0, 15, 17])]
)
def test_client_table_has_the_rows_of_the_selected_evaluations(selected: Any, steps: list[int], tmp_path: Path) -> None:
    history = execute(tmp_path / "run", client_evals=selected, client_evals_of=3, eval_every=5)
    found = history.clients
    assert found["step"].tolist() == [step for step in steps for _ in range(3)]
    assert len(set(found["client"])) == 3
    # Each commit of this method is a step.
    commits = [line["client"] for line in history.lines() if line["kind"] == "commit"]
    for step, rows in found.groupby("step"):
        assert rows["updates"].tolist() == [commits[: int(step)].count(client) for client in rows["client"]]


@pytest.mark.parametrize(
    "method",
    [
        {"method": "fed-raa", "updates": 17, "eval_every": 4, "client_evals": "final"},
        {"method": "fedavg", "rounds": 5, "client_evals": 2},
    ],
    ids=["final", "some"],
)
def test_killed_run_resumes_to_the_same_table(method: dict[str, Any], tmp_path: Path) -> None:
    fields = {**SMALL, **method, "checkpoint_every": 3, "hidden": (6,), "dataset": "digits"}
    fl.run(fl.Experiment(**fields, out=tmp_path / "undisturbed"))
    with pytest.raises(Killed):
        fl.run(fl.Experiment(**fields, out=tmp_path / "killed"), callbacks=[KillAt(14)])
    fl.resume(tmp_path / "killed")
    for name in (CLIENTS, PARTITION):
        assert (tmp_path / "killed" / name).read_bytes() == (tmp_path / "undisturbed" / name).read_bytes()


def test_extended_run_has_the_table_of_a_run_with_the_larger_limit(tmp_path: Path) -> None:
    fields = {**SMALL, "client_evals": "final", "hidden": (6,), "dataset": "digits"}
    fl.run(fl.Experiment(**fields, updates=12, out=tmp_path / "short"))
    fl.resume(tmp_path / "short", updates=20)
    fl.run(fl.Experiment(**fields, updates=20, out=tmp_path / "long"))
    assert (tmp_path / "short" / CLIENTS).read_bytes() == (tmp_path / "long" / CLIENTS).read_bytes()


def test_client_table_has_the_reason_of_a_quarantine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = Trainer.train

    def fails(self: Trainer, task: Task, *rest: Any) -> Update:
        if task.client == 2:
            raise RuntimeError('a broken, "quoted" sensor')
        return train(self, task, *rest)

    monkeypatch.setattr(Trainer, "train", fails)
    found = execute(tmp_path / "run", client_evals="final").clients
    assert 'broken, "quoted" sensor' in found["quarantined"][2]
    assert found["quarantined"].drop(2).tolist() == [""] * 4
    assert found["updates"][2] == 0


def test_natural_clients_have_their_names_and_empty_results_without_test_samples(tmp_path: Path) -> None:
    owners, tested = np.array(["ann", "007", NA])[np.arange(120) % 3], ["ann", "007"] * 30
    dataset = fl.FederatedDataset(
        "people", train=(X, Y), test=(X_TEST, Y_TEST), classes=4, clients=owners.tolist(), test_clients=tested
    )
    history = execute(tmp_path / "run", dataset, partition="natural", clients=3, client_evals="final")
    found = history.clients.set_index("name")
    assert sorted(found.index) == sorted({"ann", "007", NA})
    assert found["test_samples"].to_dict() == {"ann": 30, "007": 30, NA: 0}
    assert np.isnan(found["accuracy"][NA])
    assert found["accuracy"].drop(NA).notna().all()
    partition = history.partition
    assert partition.names is not None
    for client, name in enumerate(partition.names):
        assert partition.train is not None
        assert set(owners[partition.train[client]]) == {name}


def assert_same_samples(held: tuple[Any, Any], x: np.ndarray, y: np.ndarray) -> None:
    """Assert that a client's samples are these; its inputs are scaled, which keeps the order of each feature."""
    np.testing.assert_array_equal(np.argsort(held[0], axis=0), np.argsort(x, axis=0))
    np.testing.assert_array_equal(held[1], y)


@pytest.mark.parametrize("validation", [0.0, 0.25])
def test_partition_gives_the_rows_that_clients_train_on(validation: float, tmp_path: Path) -> None:
    history = execute(tmp_path / "run", validation=validation)
    spec = build_run(history.experiment, model=model(), dataset=DATA)
    partition, rows = history.partition, []
    assert partition.test_is_held_back is bool(validation)
    for client in range(5):
        train, test = partition.train[client], partition.test[client]
        assert_same_samples(spec.data.client(client), X[train], Y[train])
        if validation:
            assert_same_samples(spec.data.test_of(client), X[test], Y[test])
        else:
            assert_same_samples(spec.data.test_of(client), X_TEST[test], Y_TEST[test])
        rows += [*train.tolist(), *(test.tolist() if validation else [])]
    assert sorted(rows) == list(range(120))
    assert partition.sizes.tolist() == spec.data.sizes.tolist()


def test_partition_of_lazy_data_has_rows_and_of_generated_data_only_sizes(tmp_path: Path) -> None:
    class Items(torch.utils.data.Dataset[Any]):
        def __len__(self) -> int:
            return 120

        def __getitem__(self, row: int) -> tuple[torch.Tensor, int]:
            return torch.from_numpy(X[row]), int(Y[row])

    lazy = fl.FederatedDataset("lazy", train=Items(), test=(X_TEST, Y_TEST), classes=4)
    partition = execute(tmp_path / "lazy", lazy).partition
    assert partition.train is not None
    assert sorted(np.concatenate(partition.train[:]).tolist()) == list(range(120))
    made = fl.FederatedDataset("made", train=lambda n: (X[:9], Y[:9]), sizes=9, test=(X_TEST, Y_TEST), classes=4)
    partition = execute(tmp_path / "made", made, partition=None).partition
    assert partition.train is None
    assert partition.sizes.tolist() == [9] * 5


@pytest.mark.parametrize("name", [CLIENTS, PARTITION])
def test_replay_finds_a_changed_or_missing_file(name: str, tmp_path: Path) -> None:
    execute(tmp_path / "run", client_evals="final")
    path = tmp_path / "run" / name
    path.write_bytes(path.read_bytes().replace(b"1", b"2"))
    with pytest.raises(Inconsistent, match=name):
        fl.replay(tmp_path / "run")
    path.unlink()
    with pytest.raises(Inconsistent, match=name):
        fl.replay(tmp_path / "run")


def test_missing_client_results_raise_an_error_that_names_the_option(tmp_path: Path) -> None:
    history = execute(tmp_path / "run")
    assert not (tmp_path / "run" / CLIENTS).exists()
    with pytest.raises(ValueError, match=r"^clients: .*--client-evals"):
        _ = history.clients
    with pytest.raises(ValueError, match=r"^client_evals_of: "):
        fl.Experiment(client_evals_of=3)
    with pytest.raises(ValueError, match=r"^client_evals: "):
        fl.Experiment(client_evals="none")
