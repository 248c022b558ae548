"""The search space: its texts, its edges, and its extension."""

import math

import pytest
from refusals import refuses

from fedraa.server.staleness import Constant
from fedraa.tuning.space import Choices, Range, describe_space, make_space


def test_space_from_texts_equals_space_from_python() -> None:
    text = make_space(["lr=0.01:1:log", "local-steps=80,5,20", "momentum=0:0.9", "compress=none,8bit", "clip=1"])
    assert text == {
        "lr": Range(0.01, 1.0, log=True),
        "local_steps": Choices((5, 20, 80)),
        "momentum": Range(0.0, 0.9),
        "compress": Choices(("none", "8bit")),
        "clip": Choices((1,)),
    }
    python = make_space({"lr": (0.01, 1, "log"), "local_steps": [5, 20, 80], "momentum": (0, 0.9), "clip": "1"})
    assert python == {name: text[name] for name in ("lr", "local_steps", "momentum", "clip")}
    assert make_space(["local_steps=5:50"]) == {"local_steps": Range(5, 50, whole=True)}
    # The field takes floats, although the ends are written as integers.
    assert make_space(["lr=1:4"]) == {"lr": Range(1.0, 4.0)}
    assert make_space([f"{name}={value}" for name, value in describe_space(text).items()]) == text


def test_a_component_with_values_is_one_choice() -> None:
    space = make_space(["ratios=(0.4, 0.6),(1.0,)"])
    assert space == {"ratios": Choices(((0.4, 0.6), (1.0,)))}
    assert make_space([f"{name}={value}" for name, value in describe_space(space).items()]) == space
    (choices,) = make_space(["staleness=hinge(slope=2, start=1),constant"]).values()
    assert choices == Choices(("hinge(slope=2, start=1)", "constant"))


def test_word_that_an_option_allows_beside_numbers_is_a_choice() -> None:
    assert make_space(["capacities=auto,(0.5, 1.0)"]) == {"capacities": Choices(("auto", (0.5, 1.0)))}


def test_nested_component_is_one_choice() -> None:
    within = "fadas(size=3, optimizer='amsgrad(server_lr=0.1, beta1=0.8)')"
    space = make_space([f"async_rule=delta,{within}"])
    assert space == {"async_rule": Choices(("delta", within))}
    assert make_space(describe_space(space)) == space


@pytest.mark.parametrize(
    ("description", "field", "names"),
    [
        ([], "space", ["NAME=VALUES"]),
        ("lr=1", "space", ["'lr=1'", "NAME=VALUES"]),
        (["lr"], "space", ["'lr'", "NAME=VALUES"]),
        (["lrr=1"], "space", ["'lrr'", " lr?"]),
        (["seed=1,2"], "space", ["'seed'", "momentum"]),
        (["lr=1,2", "lr=3"], "space", ["lr"]),
        (["lr=2:1"], "space.lr", ["'2:1'", "LOW", "HIGH"]),
        (["lr=0:1:log"], "space.lr", ["'0:1:log'"]),
        (["lr=0.01-0.3"], "space.lr", ["'0.01-0.3'", "LOW:HIGH"]),
        (["lr=1,1"], "space.lr", ["'1,1'", "LOW:HIGH", "once"]),
        (["lr="], "space.lr", ["''", "LOW:HIGH"]),
        (["compress=0:1"], "space.compress", ["'0:1'"]),
        ({"lr": 3}, "space.lr", ["3", "LOW:HIGH"]),
        ({"lr": (1, 2, "exp")}, "space.lr", ["'exp'", "LOW:HIGH"]),
        ({"lr": (0.1, math.inf)}, "space.lr", ["inf", "LOW", "HIGH"]),
        (["delay_bound=None,2"], "space.delay_bound", ["'None,2'", "numbers"]),
        ({"staleness": [Constant(), "polynomial"]}, "space.staleness", ["2 items", "as text"]),
        ({"ratios": [[0.5, None]]}, "space.ratios", ["None"]),
    ],
)
def test_a_wrong_space_is_refused_by_its_field(description: object, field: str, names: list[str]) -> None:
    with refuses(field, *names):
        # The test passes values of wrong types on purpose.
        make_space(description)  # type: ignore[arg-type]


def test_value_within_a_twentieth_of_a_range_from_its_end_is_at_the_edge() -> None:
    even, log = Range(0.0, 1.0), Range(0.01, 1.0, log=True)
    assert [even.edge_side(value) for value in (0.0, 0.05, 0.06, 0.5, 0.94, 0.95, 1.0)] == [-1, -1, 0, 0, 0, 1, 1]
    # The range covers two powers of ten. A twentieth of it at either end is below 10^-1.9 and above 10^-0.1.
    assert [log.edge_side(value) for value in (0.0125, 0.0127, 0.1, 0.79, 0.8)] == [-1, 0, 0, 0, 1]


def test_a_range_is_widened_by_half_of_itself_on_one_side() -> None:
    assert Range(0.0, 1.0).widen_side(1) == Range(0.0, 1.5)
    assert Range(0.0, 1.0).widen_side(-1) == Range(-0.5, 1.0)
    assert Range(0.01, 1.0, log=True).widen_side(1) == Range(0.01, 10.0, log=True)
    assert Range(0.01, 1.0, log=True).widen_side(-1) == Range(0.001, 1.0, log=True)
    assert Range(10, 20, whole=True).widen_side(1) == Range(10, 25, whole=True)


def test_ordered_choices_are_widened_by_one_value() -> None:
    steps = Choices((5, 20, 80))
    assert [steps.edge_side(value) for value in (5, 20, 80)] == [-1, 0, 1]
    assert steps.widen_side(1) == Choices((5, 20, 80, 320))
    # 5 * 5 / 20 is rounded to 1.
    assert steps.widen_side(-1) == Choices((1, 5, 20, 80))
    assert Choices((0, 0.1)).widen_side(1) == Choices((0, 0.1, 0.2))
    assert Choices((0.1, 0.3)).widen_side(1) == Choices((0.1, 0.3, 0.9))
    assert Choices((1,)).edge_side(1) == Choices(("a", "b")).edge_side("a") == 0
    # No method takes -1, so that a tuning would not use these choices.
    assert Choices((0, 1, 2)).widen_side(-1) == Choices((-1, 0, 1, 2))


def test_texts_that_differ_in_one_number_are_ordered_choices() -> None:
    steps = make_space({"local_steps": "auto:20,auto:5,auto:10"})["local_steps"]
    assert steps == Choices(("auto:5", "auto:10", "auto:20"))
    assert [steps.edge_side(value) for value in ("auto:5", "auto:10", "auto:20")] == [-1, 0, 1]
    # 5 * 5 / 10 is rounded to 2.
    assert steps.widen_side(-1) == Choices(("auto:2", "auto:5", "auto:10", "auto:20"))
    assert steps.widen_side(1) == Choices(("auto:5", "auto:10", "auto:20", "auto:40"))
    rules = Choices(
        ("delta(server_gain=1.2, participation_correction=0.5)", "delta(server_gain=1.8, participation_correction=0.5)")
    )
    assert rules.widen_side(1).ends[-1] == "delta(server_gain=2.7, participation_correction=0.5)"
    shares = Choices(("topk:0.01", "topk:0.1"))
    assert shares.widen_side(-1).ends[0] == "topk:0.001"


@pytest.mark.parametrize(
    "values",
    [
        ("auto:5", "topk:5"),
        ("auto:5:1", "auto:10:2"),
        ("none", "8bit"),
        ("own1:Rule", "own2:Rule"),
        ("auto", "auto:5"),
        ("auto:007", "auto:008"),
        ("auto:5", 5),
    ],
)
def test_unrelated_texts_have_no_order(values: tuple[object, ...]) -> None:
    choices = Choices(values)
    assert not choices.ordered
    assert [choices.edge_side(value) for value in values] == [0, 0]
    assert choices.widen_side(1) == choices


def test_rounded_values_have_three_digits_and_stay_inside() -> None:
    assert Range(0.0, 1.0).rounded(0.123456) == 0.123
    assert Range(0.12345, 1.0).rounded(0.12345) == 0.12345
    assert Range(1, 9, whole=True).rounded(3.7) == 4
