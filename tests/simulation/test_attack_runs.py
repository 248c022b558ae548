"""Runs with attackers: attacked deltas give the expected model; runs resume, replay and measure backdoors."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from equal_runs import check_resume
from refusals import refuses

from fedraa import Experiment, run
from fedraa.engine.build import build_run
from fedraa.engine.factories import make_server, make_worker_spec
from fedraa.errors import RunWarning

SMALL: dict[str, Any] = {
    "engine": "local",
    "hidden": (8,),
    "clients": 6,
    "local_steps": 2,
    "checkpoint_every": 2,
    "attackers": 0.34,
    "seed": 5,
    "quiet": True,
}


@pytest.mark.parametrize(
    "fields",
    [
        {"method": "fedavg", "attack": "alie", "rounds": 4},
        {"method": "heterofl", "attack": "ipm", "aggregator": "median", "rounds": 4},
        {"method": "fed-raa-sync", "attack": "alie", "rounds": 4},
        {"method": "fedbuff", "attack": "alie", "buffer_size": 3, "updates": 8},
        {"method": "fed-raa", "attack": "ipm", "updates": 24},
        {"method": "heterofl-async", "attack": "alie", "updates": 24},
        {"method": "scaffold", "attack": "gaussian", "rounds": 4},
        {"method": "fedasync", "attack": "sign-flip", "updates": 24},
        {"method": "fedavg", "attack": "label-flip", "rounds": 4},
        {"method": "fedavg", "attack": "backdoor", "rounds": 4},
    ],
    ids=lambda fields: f"{fields['method']}-{fields['attack']}",
)
def test_killed_run_with_attackers_resumes_and_replays(fields: dict[str, Any], tmp_path: Path) -> None:
    whole = check_resume(SMALL | fields, tmp_path, kill_at=15)
    honest = {key: value for key, value in (SMALL | fields).items() if key not in ("attack", "attackers")}
    clean = run(Experiment(**honest, out=tmp_path / "clean"))
    assert clean.summary["model_sha256"] != whole.summary["model_sha256"]
    assert len(whole.config["resolved"]["attackers"]) == 2


@pytest.mark.parametrize(("attack", "coefficients"), [("sign-flip", (1, -1)), ("ipm(epsilon=0.5)", (0, -0.5))])
def test_round_with_attackers_equals_the_mean_of_the_attacked_deltas(
    attack: str, coefficients: tuple[float, float], tmp_path: Path
) -> None:
    """One round of plain means: honest deltas, and attackers that send c * their delta or c * the honest mean."""
    fields = {"method": "fedavg", "weights": "uniform", "rounds": 1, "attack": attack}
    spec = build_run(Experiment(**SMALL, **fields, out=tmp_path / "none"))
    assert spec.attack is not None
    trained = train_all_honestly(spec)
    attackers = sorted(spec.attack.attackers)
    honest = np.mean([delta for client, delta in trained.items() if client not in attackers], axis=0)
    own, of_mean = coefficients
    sent = dict(trained)
    for client in attackers:
        sent[client] = -trained[client] if own else of_mean * honest
    expected = spec.params + np.mean(list(sent.values()), axis=0)
    model = run(Experiment(**SMALL, **fields, out=tmp_path / "run")).load_model()
    final = np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])
    np.testing.assert_allclose(final, expected, rtol=1e-4, atol=1e-6)


def train_all_honestly(spec: Any) -> dict[int, np.ndarray]:
    """Return the delta of every client's first task, without the attack."""
    server = make_server(replace(spec, attack=None), lambda kind, t, /, **fields: None)
    trainer = replace(make_worker_spec(spec), attack=None).trainer("cpu")
    deltas = {}
    for client in server.begin():
        task = server.assign(client, 0.0)
        update = trainer.train(task, *spec.data.shard(client, task.turn))
        deltas[client] = update.params - task.params
    return deltas


def test_alie_computes_the_z_of_the_paper_from_the_clients_in_a_robust_buffer(tmp_path: Path) -> None:
    """A robust buffer of 10 holds the deltas of only 6 clients: z is 0 for 2 of 6 attackers, and 0.18 for 3 of 10."""
    fields = SMALL | {"method": "fedbuff", "aggregator": "median", "attack": "alie(z=None)", "updates": 3}
    digests = set()
    for number, more in enumerate([{}, {"buffer_size": 6}, {"attack": "alie(z=0)"}]):
        run_of_case = run(Experiment(**fields | more, out=tmp_path / str(number)))
        digests.add(run_of_case.summary["model_sha256"])
    assert len(digests) == 1


def test_backdoor_run_measures_the_attack_success_which_the_median_lowers(tmp_path: Path) -> None:
    fields = {**SMALL, "local_steps": 20, "hidden": (30,), "method": "fedavg", "rounds": 8}
    attacked = run(Experiment(**fields, attack="backdoor(target=3, share=0.5, scale=3.0)", out=tmp_path / "attacked"))
    bounded = run(
        Experiment(
            **fields,
            attack="backdoor(target=3, share=0.5, scale=3.0)",
            aggregator="median",
            out=tmp_path / "bounded",
        )
    )
    success = attacked.evals["attack_success"]
    assert success.between(0, 1).all()
    assert success.iloc[-1] > 0.5
    assert bounded.evals["attack_success"].iloc[-1] < success.iloc[-1]
    assert attacked.summary["metrics"]["attack_success"] == success.iloc[-1]
    assert attacked.metric_spec.better("attack_success") == "min"


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("attackers", {"method": "fedavg", "attack": None, "attackers": 0.3}),
        ("attackers", {"method": "fedavg", "attack": "alie", "attackers": 0.01}),
        ("attack", {"method": "fedavg", "attack": "little"}),
        ("attack", {"method": "scaffold", "attack": "alie"}),
        ("attack", {"method": "feddyn", "attack": "ipm"}),
        ("attack.target", {"method": "fedavg", "attack": "backdoor(target=12)"}),
        ("attack.size", {"method": "fedavg", "attack": "backdoor(size=8)"}),
        ("attack.target", {"method": "fedavg", "attack": "label-flip(source=3, target=3)"}),
        ("attack", {"method": "fedavg", "attack": "sign-flip", "clients": 1}),
        ("attack", {"method": "fedavg", "attack": "label-flip", "objective": "regression"}),
    ],
)
def test_attack_that_cannot_be_run_is_refused(field: str, fields: dict[str, Any]) -> None:
    with refuses(field):
        build_run(Experiment(**SMALL | fields))


@pytest.mark.parametrize(
    ("weak", "strong"),
    [("krum", "krum(attackers=2)"), ("trimmed-mean(trim=0.2)", "trimmed-mean(trim=0.25)"), ("bulyan", "median")],
)
def test_more_attackers_than_the_aggregator_withstands_give_a_warning(weak: str, strong: str) -> None:
    fields = {**SMALL, "clients": 8, "method": "fedavg", "attack": "sign-flip", "attackers": 0.25}
    with pytest.warns(RunWarning, match=r"^aggregator: "):
        build_run(Experiment(**fields, aggregator=weak))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RunWarning)
        build_run(Experiment(**fields, aggregator=strong))


def test_personal_models_are_evaluated_for_honest_clients() -> None:
    spec = build_run(Experiment(**SMALL, method="ditto", attack="label-flip"))
    assert spec.attack is not None
    assert set(spec.personal_clients) == set(range(6)) - spec.attack.attackers
    with refuses("personalised", got=6):
        build_run(Experiment(**SMALL, method="ditto", attack="label-flip", personalised=6))


def test_root_of_fltrust_that_is_an_attacker_is_refused() -> None:
    spec = build_run(Experiment(**SMALL, method="fedavg", attack="alie"))
    assert spec.attack is not None
    for client in range(6):
        experiment = Experiment(**SMALL, method="fedavg", attack="alie", aggregator=f"fltrust(root={client})")
        if client in spec.attack.attackers:
            with refuses("aggregator", str(client)):
                build_run(experiment)
        else:
            build_run(experiment)


@pytest.mark.parametrize(
    ("fields", "has_effect"),
    [
        ({"participation": "round-robin:2"}, False),
        ({"participation": "round-robin:3"}, True),
        ({"clients": 3}, True),
        ({"clients": 3, "attackers": 0.67}, False),
        ({"attack": "alie(knowledge='own')", "attackers": 0.17}, False),
        ({"attack": "alie(knowledge='own')"}, True),
        ({"attack": "ipm", "participation": "round-robin:2"}, False),
        ({"attack": "ipm", "participation": "round-robin:3"}, True),
    ],
    ids=str,
)
def test_attack_that_sees_too_few_deltas_gives_a_warning(
    fields: dict[str, Any], has_effect: bool, tmp_path: Path
) -> None:
    settings = {**SMALL, "method": "fedavg", "attack": "alie", "rounds": 3, "attackers": 0.34, **fields}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RunWarning)
        attacked = run(Experiment(**settings, out=tmp_path / "attacked"))
    assert [str(each.message).split(":")[0] for each in caught] == ([] if has_effect else ["attack"])
    settings |= {"attack": None, "attackers": None}
    honest = run(Experiment(**settings, out=tmp_path / "honest"))
    # Deltas of attackers are added last, so the models differ by rounding errors even if no delta was forged.
    differences = [
        float((one - other).abs().max())
        for one, other in zip(
            torch.load(attacked.directory / "model.pt").values(),
            torch.load(honest.directory / "model.pt").values(),
            strict=True,
        )
    ]
    assert (max(differences) > 1e-5) == has_effect
