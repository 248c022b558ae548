"""What was mistyped is told with what may be meant."""

import pytest

from fedraa.cli.main import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("run --dataste digits", "--dataste: there is no such flag; did you mean --dataset?"),
        ("run --local-epoch=3", "--local-epoch: there is no such flag; did you mean --local-epochs?"),
        ("compare fedavg --seed-s 3", "--seed-s: there is no such flag; did you mean --seeds?"),
        ("report runs/x --thme dark", "--thme: there is no such flag; did you mean --theme?"),
        ("resume runs/x --round 9", "--round: there is no such flag; did you mean --rounds?"),
        (
            "compare --methods fedavg",
            "--methods: there is no such flag; give the methods alone, see fedraa compare --help",
        ),
        ("run --zzz 3", "--zzz: there is no such flag; see fedraa run --help"),
        ("rnu --updates 3", "rnu: there is no such command; did you mean run?"),
        ("zzz", "zzz: there is no such command; see fedraa --help"),
        (
            "compare fedavg --terms equl",
            "terms: got 'equl'; choose one of equal, paper, tuned",
        ),
        ("run fedavg", "fedavg: there is no such argument; see fedraa run --help"),
        ("plan --method fedavg --updates 10", "updates: 10 means nothing to fedavg; fedavg counts rounds: --rounds 10"),
        (
            "plan --method fedbuff --rounds 9",
            "rounds: 9 means nothing to fedbuff; fedbuff counts updates: --updates 9",
        ),
        ("plan --method fedavg --mixing 0.5", "mixing: 0.5 means nothing to fedavg; leave it out"),
    ],
)
def test_a_mistyped_word_is_met_with_a_better_one(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words.split()) == 2
    assert capsys.readouterr() == ("", f"fedraa: {said}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("board . --port 80x", "port: got '80x', but takes INT"),
        ("compare fedavg --seeds 1 b", "seeds: got '1', 'b', but takes INT ..."),
        ("run --updates x", "updates: got 'x', but takes INT"),
        ("run --lr", "lr: got no value, but takes FLOAT"),
        ("run --capacities x", "capacities: got 'x', but takes FLOAT ...|auto"),
        ("resume runs/x --time soon", "time: got 'soon', but takes FLOAT"),
    ],
)
def test_a_value_that_is_none_is_told_with_what_the_flag_takes(
    words: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert capsys.readouterr() == ("", f"fedraa: {said}\n")
