"""An error about a mistyped name suggests a similar name."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest
from refusals import refuses

import fedraa as fl
from fedraa.cli.main import COMMANDS, main
from fedraa.config.experiment import Experiment
from fedraa.config.usual_names import USUAL_COMMANDS, USUAL_NAMES
from fedraa.engine.build import build_run


@pytest.mark.parametrize(
    ("words", "field", "advice"),
    [
        ("run --dataste digits", "--dataste", "--dataset?"),
        ("run --local-epoch=3", "--local-epoch", "--local-epochs?"),
        ("compare fedavg --seed-s 3", "--seed-s", "--seeds?"),
        ("report runs/x --thme dark", "--thme", "--theme?"),
        ("resume runs/x --round 9", "--round", "--rounds?"),
        ("compare --methods fedavg", "--methods", "fedraa compare --help"),
        ("run --zzz 3", "--zzz", "fedraa run --help"),
        ("submit run --updates 3", "--updates", "fedraa submit -- run --updates"),
        ("submit --adress x run", "--adress", "--address?"),
        ("submit", "command", "fedraa submit -- run"),
        ("submit -- python train.py", "python", "fedraa --help"),
        ("submit -- rnu --updates 3", "rnu", "run?"),
        ("submit --address 127.0.0.1:8265 -- run --updates 3", "address", "http://127.0.0.1:8265"),
        ("submit -- run --updates 3 --out runs/job", "out", "absolute path"),
        ("submit -- run --out=runs/job", "out", "absolute path"),
        ("resume runs/x --lr 0.1", "--lr", "fedraa run --lr"),
        ("resume runs/x --placement spread", "--placement", "fedraa.resume(RUN, placement=...)"),
        ("submit rnu", "rnu", "run?"),
        ("rnu --updates 3", "rnu", "run?"),
        ("zzz", "zzz", "fedraa --help"),
        ("compare fedavg --terms equl", "terms", "equal, paper, tuned"),
        ("run fedavg", "fedavg", "fedraa run --help"),
        ("plan --method fedavg --updates 10", "updates", "--rounds 10"),
        ("plan --method fedbuff --rounds 9", "rounds", "--updates 9"),
        ("plan --method fedavg --mixing 0.5", "mixing", "fedavg"),
        ("plan --availability dayly:0.3 --availability-period 1 --updates 9", "availability", "daily:SHARE"),
    ],
)
def test_mistyped_word_gets_a_suggestion(
    words: str, field: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fedraa: {field}: ")
    assert advice in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "choices", "meant"),
    [
        ("--scheduler gre-ra", "least-sent", "gre-raa"),
        ("--scheduler cosine", "least-sent", "lr_schedule cosine:100"),
        ("--staleness polynomal", "hinge", "polynomial"),
        ("--partition dirichle", "shards", "dirichlet"),
        ("--partition dirichle:0.1", "shards", "dirichlet"),
        ("--objective clasification", "multilabel", "classification"),
        ("--local-optimizer adm", "adamw", "adam"),
        ("--method fedavg --server-optimizer yogy", "adagrad", "yogi"),
        ("--async-rule bufer", "fedgmr", "buffer"),
    ],
)
def test_misspelled_component_is_refused_before_anything_is_written(
    words: str,
    choices: str,
    meant: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    *_, flag, value = words.split()
    assert main(["run", "--engine", "local", "--clients", "4", *words.split()]) == 2
    error = capsys.readouterr().err
    field = flag.removeprefix("--").replace("-", "_")
    assert error.startswith(f"fedraa: {field}: got {value.partition(':')[0]!r}; expected ")
    assert choices in error
    assert error.endswith(f"did you mean {meant}?\n")
    assert list(tmp_path.iterdir()) == []


def test_learning_rate_scheduler_as_scheduler_suggests_lr_schedule() -> None:
    with refuses("scheduler", "lr_schedule", got="step"):
        fl.run(method="fedavg", scheduler="step", engine="local")


def test_error_of_an_unknown_flag_suggests_the_similar_flag(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--dataste", "digits"]) == 2
    assert capsys.readouterr().err == "fedraa: --dataste: there is no such flag; did you mean --dataset?\n"


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("run --learning-rate 1", "--lr"),
        ("run --learning_rate=1", "--lr"),
        ("run --optimizer adamw", "--server-optimizer"),
        ("run --epochs 3", "--local-epochs or --rounds"),
        ("run --batch 3", "--batch-size"),
        ("run --bs 3", "--batch-size"),
        ("run --wd 0.1", "--weight-decay"),
        ("run --num-clients 3", "--clients"),
        ("run --n-clients 3", "--clients"),
        ("run --num-rounds 3", "--rounds"),
        ("run --alpha 0.1", "--dirichlet or --mixing"),
        ("run --gpu 1", "--device"),
        ("run --output x", "--out"),
        ("run --name x", "--out"),
        ("run --LR 0.1", "--lr"),
        ("tune fedavg --num-rounds 3", "--rounds"),
        ("train --rounds 3", "run"),
        ("dashboard", "board"),
        ("run -lr 0.1", "--lr"),
    ],
)
def test_usual_synonym_of_a_flag_or_command_suggests_the_right_name(
    words: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert said.endswith("?\n")
    for name in meant.split(" or "):
        assert re.search(rf"{name}\b(?![-\w])", said.partition("did you mean")[2])


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("run --seed 0 1", "compare METHOD --seeds 0 1"),
        ("run --seed=0 1 2", "compare METHOD --seeds 0 1"),
        ("run --seeds 0 1", "--seeds 0 1"),
        ("run --lr 0.1 0.2", "lr: got ['0.1', '0.2']"),
        ("run --wandb mine", '--callbacks "wandb"'),
        ("run --tensorboard logs", '--callbacks "tensorboard"'),
        ("--method fedavg", "--method: "),
        ("run --callbacks csv --engine local", "csv(path=...)"),
        ("run --model resnet --engine local", " resnet18?"),
        ("run --method fedavgg --engine local", " fedavg?"),
        ("run --method fedavgg --engine local", "package.module:NAME"),
        ("run --dataset minst --engine local", " mnist?"),
        ("run --scheduler gre-ra --engine local", " gre-raa?"),
        ("run --scheduler cosine --engine local", "lr_schedule cosine:100"),
        ("run --scheduler step --engine local", "lr_schedule steps:150,250:0.1"),
        ("run --resume runs/x", "fedraa resume"),
        ("run --dataset CIFAR-10 --engine local", "cifar10?"),
        ("run --dataset CIFAR10 --engine local", "cifar10?"),
        ("run --dataset FashionMNIST --engine local", "fashion-mnist?"),
        ("run --dataset fmnist --engine local", "fashion-mnist?"),
        ("run --dataset MNIST --engine local", "mnist?"),
        ("run --method FedAvg --engine local", "fedavg?"),
        ("run --model ResNet-18 --engine local", "resnet18?"),
    ],
)
def test_common_mistake_gets_a_suggestion_that_works(words: str, part: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    said = capsys.readouterr().err
    assert part in said
    assert said.count("\n") == 1
    assert "__init__" not in said


@pytest.mark.parametrize("words", ["run --quux 3", "run --zebra 3", "run --optimistic 3", "run --period 3", "result"])
def test_word_unlike_every_flag_and_command_gets_no_suggestion(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_usual_synonyms_suggest_fields_in_python_and_in_files(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"learning_rate.* lr\?$"):
        fl.run(learning_rate=0.1)
    with pytest.raises(ValueError, match=r"fedraa\.resume$"):
        fl.run(resume="runs/x")
    with pytest.raises(ValueError, match=r"callbacks=\[.*wandb"):
        fl.run(wandb="mine")
    (tmp_path / "my.toml").write_text("num_clients = 3\n")
    with pytest.raises(ValueError, match=r"num_clients.* clients\?$"):
        Experiment.from_file(tmp_path / "my.toml")


def test_every_usual_synonym_maps_to_a_name_and_is_no_name() -> None:
    to_come = {"local_optimizer"}
    for name, fields in USUAL_NAMES.items():
        assert name not in Experiment.model_fields
        assert set(fields) - to_come <= Experiment.model_fields.keys()
    assert {command for commands in USUAL_COMMANDS.values() for command in commands} <= COMMANDS.keys()
    assert not USUAL_COMMANDS.keys() & COMMANDS.keys()


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"fedraa {version('fedraa')}\n"


@pytest.mark.parametrize(
    ("words", "field", "got", "expected"),
    [
        ("board . --port 80x", "port", "80x", "INT"),
        ("compare fedavg --seeds 1 b", "seeds", "b", "INT ... with spaces between the values"),
        ("run --updates x", "updates", "x", "INT"),
        ("run --lr", "lr", "", "FLOAT"),
        ("run --capacities x", "capacities", "x", "FLOAT ...|auto"),
        ("resume runs/x --time soon", "time", "soon", "FLOAT"),
    ],
)
def test_error_of_an_invalid_flag_value_names_the_expected_type(
    words: str, field: str, got: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"fedraa: {field}: ")
    assert got in err
    assert err.endswith(f"expected {expected}\n")


def test_folder_as_method_suggests_the_report_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tmp_path), "--time", "1"]) == 2
    assert f"fedraa report {tmp_path}" in capsys.readouterr().err


@pytest.mark.parametrize("option", ["method", "dataset", "availability"])
def test_name_that_is_too_long_for_a_path_is_refused_like_any_other(option: str) -> None:
    name = "a/" + "x" * 300
    if option == "availability":
        name = "x:" + name
    with refuses(option, got=name):
        build_run(Experiment(**{option: name}))
