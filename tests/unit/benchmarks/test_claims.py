"""Claims of the papers: verdicts, intervals and texts, computed by hand."""

import math
from dataclasses import replace

import pytest
from matplotlib.figure import Figure

from benchmarks.studies.claims import (
    PaperClaim,
    compare_results,
    describe_comparisons,
    describe_limit,
    describe_reason,
    describe_verdict,
    load_claims,
)
from benchmarks.studies.forest import draw_rows
from benchmarks.studies.interval import bounded_interval
from benchmarks.studies.results import Line, Result
from benchmarks.studies.verdict import (
    CANNOT_TELL_TOO_FEW,
    NOISE,
    NOT_RUN,
    ONLY,
    OTHER_WAY,
    REPRODUCED,
    Advantage,
    adjust_holm,
    decide_verdict,
    measure_advantage,
    p_of_claim,
    paired_p_value,
)
from benchmarks.studies.weak import AT_CHANCE, SATURATED, weak_points

INF = math.inf


def compare(a: tuple[float, ...], b: tuple[float, ...], *, less: bool = False, ratio: bool = False) -> Advantage:
    lines = [Line(sum(values) / len(values), None, len(values), values) for values in (a, b)]
    return measure_advantage("quick", ("a", "b"), *lines, less=less, ratio=ratio)


def test_differences_are_paired_by_seed() -> None:
    """Differences 1, 2, 3: mean 2, deviation 1, t(.975, 2) = 4.3027, so 2 -+ 2.4841."""
    gained = compare((11, 22, 33), (10, 20, 30))
    assert (gained.mean, gained.low, gained.high) == pytest.approx((2, -0.4841, 4.4841), abs=1e-4)
    assert not gained.holds
    assert not gained.reversed
    assert compare((11, 21.1, 31), (10, 20, 30)).holds
    assert compare((11, 21.1, 31), (10, 20, 30), less=True).reversed


def test_times_are_compared_as_ratios() -> None:
    """Half of the time with every seed is twice as fast, and log ratios without spread have an interval of no width."""
    gained = compare((2, 3, 4), (4, 6, 8), less=True, ratio=True)
    assert (gained.mean, gained.low, gained.high) == pytest.approx((2, 2, 2))
    assert gained.holds
    # log 2, log 4: mean log 2.8284, deviation .4901, t(.975, 1) = 12.7062: half width 12.7062 * .4901 / sqrt 2 = 4.4036
    gained = compare((1, 1), (2, 4), less=True, ratio=True)
    assert (gained.mean, gained.high) == pytest.approx((2**1.5, 2**1.5 * math.exp(4.4036)), rel=1e-3)


def test_interval_without_values_by_seed_is_welchs_interval() -> None:
    """With deviations 1 and n = 3: half widths 2.4841, standard errors .57735, 4 degrees of freedom, t = 2.7764."""
    lines = Line(5, 2.4841, 3, ()), Line(2, 2.4841, 3, ())
    gained = measure_advantage("", ("a", "b"), *lines, less=False, ratio=False)
    half = 2.7764 * math.sqrt(2 / 3)
    assert (gained.mean, gained.low, gained.high) == pytest.approx((3, 3 - half, 3 + half), abs=1e-3)


def test_unreached_target_decides_only_if_the_other_method_always_reaches_it() -> None:
    assert compare((1, 2), (INF, INF), less=True, ratio=True).holds
    assert compare((INF, INF), (1, 2), less=True, ratio=True).reversed
    gained = compare((1, 2), (3, INF), less=True, ratio=True)
    assert not gained.holds
    assert not gained.reversed
    assert "not reached" in gained.text


def test_one_seed_decides_only_for_deterministic_metrics() -> None:
    assert not compare((2,), (1,)).reversed
    assert compare((2,), (1,)).text == "a 2, b 1: +1.00"
    for metric, decided in (("client accuracy %", False), ("MFLOP a sample", True)):
        claim = PaperClaim("p", "s", "t", "f", "subdismo_forms", metric, (("a", "b"),))
        lines = {(row, "", metric): Line(value, None, 1, (value,)) for row, value in (("a", 40.0), ("b", 50.0))}
        [gained] = compare_results(claim, [Result(claim.study, "quick", "c", "", lines)])
        assert gained.decides == decided
        assert gained.p_of_claim == 1.0 - gained.holds


def test_saturated_comparison_counts_if_another_one_decides_at_its_place() -> None:
    better, noise = compare((11, 21.1, 31), (10, 20, 30)), compare((1, 9), (2, 3))
    assert decide_verdict([weak(better, SATURATED), weak(noise, SATURATED)]) == ONLY
    assert p_of_claim([weak(better, SATURATED), weak(noise, SATURATED)]) == noise.p_of_claim
    elsewhere = replace(weak(noise, SATURATED), where="standard")
    assert decide_verdict([weak(better, SATURATED), elsewhere]) == REPRODUCED


def test_interval_is_coarse_if_it_is_wider_than_half_of_the_papers_advantage() -> None:
    """Differences -1, 0, 1: half width 2.4841, so 4.9683 wide. Log ratios -.1, 0, .1: .4968 wide."""
    gained = compare((9, 20, 31), (10, 20, 30))
    assert replace(gained, paper=9.9).is_coarse(percent=True)
    assert not replace(gained, paper=10.0).is_coarse(percent=True)
    assert not replace(gained, paper=-10.0).is_coarse(percent=True)
    # Without a number of the paper, an interval in percentage points is coarse if it is wider than two points, and any
    # other interval is coarse.
    assert gained.is_coarse(percent=True)
    narrow = replace(gained, low=-0.9, high=1.0)
    assert not narrow.is_coarse(percent=True)
    assert narrow.is_coarse(percent=False)
    times = compare((math.exp(-0.1), 1, math.exp(0.1)), (1, 1, 1), ratio=True)
    assert times.high / times.low == pytest.approx(math.exp(0.4968), rel=1e-3)
    assert replace(times, paper=2.6).is_coarse(percent=False)
    assert not replace(times, paper=2.8).is_coarse(percent=False)
    assert times.is_coarse(percent=False)
    # An interval that excludes 0 is never coarse. A comparison is coarse if a seed did not reach the target.
    assert not compare((11, 21.1, 31), (10, 20, 30)).is_coarse(percent=False)
    assert compare((1, 2), (3, INF), less=True, ratio=True).is_coarse(percent=False)


def test_seeds_to_decide_is_the_first_number_with_a_narrow_interval() -> None:
    """Differences -1, 0, 1: deviation 1. With n seeds the interval is 2 t(.975, n - 1) / sqrt(n) wide.

    That is 2.0989 for n = 6, 1.8497 for n = 7 and .9946 for n = 18. The log ratios -.1, 0, .1 have a tenth of it.
    """
    gained = compare((9, 20, 31), (10, 20, 30))
    assert gained.seeds_to_decide(percent=True) == 7
    assert replace(gained, paper=2.0).seeds_to_decide(percent=True) == 18
    assert replace(gained, paper=-2.0).seeds_to_decide(percent=True) == 18
    times = compare((math.exp(-0.1), 1, math.exp(0.1)), (1, 1, 1), ratio=True)
    assert replace(times, paper=math.exp(0.2 * 2.0)).seeds_to_decide(percent=False) == 7
    # No width of an interval in other units is narrow enough, and an interval without ends has no variance.
    assert gained.seeds_to_decide(percent=False) is None
    assert compare((1, 2), (3, INF), less=True, ratio=True).seeds_to_decide(percent=False) is None


def test_limit_is_the_comparison_that_needs_the_fewest_seeds() -> None:
    noise = compare((1, 9), (2, 3))
    easy, hard = replace(noise, enough_seeds=20, where="standard"), replace(noise, enough_seeds=30)
    assert describe_limit([hard, noise, easy]).endswith("about 20 seeds would decide a comparison: standard, a over b")
    assert describe_limit([noise]) == ""


def test_reason_of_too_few_seeds_is_the_limit_and_the_reason_in_the_claim() -> None:
    coarse = replace(compare((1, 9), (2, 3)), coarse=True, enough_seeds=20)
    claim = replace(load_claims()[0], why="Too small.")
    reason = describe_reason(claim, CANNOT_TELL_TOO_FEW, [coarse])
    assert reason == f"{describe_limit([coarse])}. Too small."
    assert describe_reason(claim, NOISE, [coarse]) == ". Too small."
    assert describe_reason(claim, NOT_RUN, [coarse]) == ""


def test_comparisons_with_too_few_seeds_do_not_hold() -> None:
    better, noise = compare((11, 21.1, 31), (10, 20, 30)), compare((1, 9), (2, 3))
    coarse = replace(noise, coarse=True)
    assert decide_verdict([coarse]) == "cannot tell (too few seeds)"
    assert decide_verdict([coarse, noise]) == NOISE
    assert decide_verdict([coarse, better]) == ONLY
    assert p_of_claim([coarse, better]) == coarse.p_of_claim > 0.05


def test_verdict_cannot_tell_if_both_methods_never_reach_the_target() -> None:
    never, always = Line(INF, None, 2, (INF, INF)), Line(1, None, 2, (1.0, 1.1))
    metric = "time to target"
    lines = {("a", "", metric): never, ("b", "", metric): never, ("c", "", metric): always}
    claim = PaperClaim("p", "s", "t", "f", "raa_in_flight", metric, (("a", "b"), ("c", "b")))
    first, second = compare_results(claim, [Result(claim.study, "quick", "c", "", lines)])
    assert first.weak == "target not reached"
    assert decide_verdict([first]) == "cannot tell (target not reached)"
    assert second.weak == ""
    assert second.holds


def test_verdict_depends_on_the_comparisons_that_hold_or_are_reversed() -> None:
    better, worse, noise = (
        compare((11, 21.1, 31), (10, 20, 30)),
        compare((10, 20, 30), (11, 21.1, 31)),
        compare((1, 9), (2, 3)),
    )
    assert decide_verdict([]) == NOT_RUN
    assert decide_verdict([better, better]) == REPRODUCED
    assert decide_verdict([better, worse]) == ONLY
    assert decide_verdict([worse, worse]) == OTHER_WAY
    assert decide_verdict([worse, noise]) == OTHER_WAY
    assert decide_verdict([noise, noise]) == NOISE


def weak(advantage: Advantage, reason: str) -> Advantage:
    return replace(advantage, weak=reason)


def test_comparison_that_cannot_tell_decides_nothing_unless_it_holds() -> None:
    better, worse, noise = (
        compare((11, 21.1, 31), (10, 20, 30)),
        compare((10, 20, 30), (11, 21.1, 31)),
        compare((1, 9), (2, 3)),
    )
    assert decide_verdict([weak(noise, SATURATED)]) == "cannot tell (saturated)"
    assert decide_verdict([weak(noise, AT_CHANCE)]) == "cannot tell (at chance)"
    assert decide_verdict([weak(noise, SATURATED), noise]) == NOISE
    assert decide_verdict([weak(noise, SATURATED), better]) == REPRODUCED
    assert decide_verdict([weak(worse, SATURATED), weak(noise, AT_CHANCE)]) == OTHER_WAY
    assert decide_verdict([weak(better, SATURATED)]) == REPRODUCED


def test_comparisons_of_saturated_columns_and_of_rows_at_chance_are_weak() -> None:
    """Chance is 10 % on digits. A row with 15 % has learned 5.6 % of the way to 100 %, and the other rows more."""
    values = {
        "a": {"x": (95, 96), "y": (15, 14)},
        "b": {"x": (95.5, 95), "y": (14, 16)},
        "c": {"x": (96, 95), "y": (80, 82)},
    }
    lines = {
        (row, column, "accuracy %"): Line(sum(by_seed) / 2, None, 2, by_seed)
        for row, columns in values.items()
        for column, by_seed in columns.items()
    }
    result = Result("raa_in_flight", "quick", "command", "", lines)
    claim = PaperClaim("p", "s", "t", "f", result.study, "accuracy %", (("a", "b"), ("c", "b")))
    reasons = {(one.where, one.names[0]): one.weak for one in compare_results(claim, [result])}
    assert reasons == {
        ("quick, x", "a"): SATURATED,
        ("quick, y", "a"): AT_CHANCE,
        ("quick, x", "c"): SATURATED,
        ("quick, y", "c"): "",
    }


def test_p_values_agree_with_the_tests_of_the_intervals() -> None:
    """Differences 1, 2, 3: t = 2 sqrt 3 with 2 degrees of freedom, p = 1 - t / sqrt(t^2 + 2) = .07418."""
    assert compare((11, 22, 33), (10, 20, 30)).p == pytest.approx(0.07418, abs=1e-5)
    assert paired_p_value((11, 22, 33), (10, 20, 30)) == pytest.approx(0.07418, abs=1e-5)
    assert paired_p_value((11, 22, 33, math.nan), (10, 20, 30, 1)) == pytest.approx(0.07418, abs=1e-5)
    assert paired_p_value((11,), (10,)) is None
    # The statistic of equal differences is infinite, and that of no differences is 0 / 0.
    assert paired_p_value((100, 100, 100), (0, 0, 0)) == 0
    assert paired_p_value((100, 100, 100), (100, 100, 100)) is None
    # Means 5 and 2, deviations 1, n = 3: t = 3 / sqrt(2 / 3) = 3.6742 with 4 degrees of freedom.
    lines = Line(5, 2.4841, 3, ()), Line(2, 2.4841, 3, ())
    assert measure_advantage("", ("a", "b"), *lines, less=False, ratio=False).p == pytest.approx(0.02131, abs=1e-4)
    # All three seeds reach the target with one method and none with the other: 1 of the 20 tables with these sums on
    # each side.
    assert compare((1, 2, 3), (INF, INF, INF), less=True, ratio=True).p == pytest.approx(0.1)


def test_claim_has_the_p_value_of_its_weakest_comparison() -> None:
    holds, fails = compare((11, 21.1, 31), (10, 20, 30)), compare((10, 20, 30), (11, 21.1, 31))
    noise = compare((11, 22, 33), (10, 20, 30))
    assert p_of_claim([holds, noise]) == noise.p
    assert p_of_claim([holds, fails]) == 1
    assert p_of_claim([holds, weak(noise, SATURATED)]) == holds.p < 0.05
    assert p_of_claim([weak(noise, SATURATED)]) is None
    assert p_of_claim([]) is None


def test_adjust_holm_follows_the_step_down_rule() -> None:
    """.01 x 4, .02 x 3, max(.02 x 3, .03 x 2), .9: the example of Holm's step-down rule."""
    assert adjust_holm([0.03, 0.01, None, 0.9, 0.02]) == pytest.approx([0.06, 0.04, None, 0.9, 0.06])
    assert adjust_holm([0.5, 0.8]) == [1.0, 1.0]
    assert adjust_holm([None]) == [None]


def test_forest_shows_our_interval_and_the_papers_advantage() -> None:
    better = Line(20, None, 3, (11, 21.1, 31), paper=93.0), Line(20, None, 3, (10, 20, 30), paper=90.5)
    gained = measure_advantage("quick", ("a", "b"), *better, less=False, ratio=False)
    assert gained.paper == 2.5
    faster = measure_advantage(
        "", ("a", "b"), Line(2, None, 1, (), 10), Line(4, None, 1, (), 30), less=True, ratio=True
    )
    assert (faster.mean, faster.paper) == (2, 3)
    axes = Figure().subplots()
    draw_rows(axes, [("a is better", gained), ("no figure", replace(gained, paper=math.nan))], ratio=False)
    drawn = [list(line.get_xdata()) for line in axes.get_lines()]
    # The vertical line, then interval, mean and paper of the first claim, then interval and mean of the second.
    assert drawn[1:] == [[gained.low, gained.high], [gained.mean], [2.5], [gained.low, gained.high], [gained.mean]]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a is better", "no figure"]


def test_verdict_text_names_the_places_that_hold_and_the_reason() -> None:
    claim = PaperClaim("p", "s", "Table 1", "1 to 2", "x", "accuracy %", (("a", "b"),), why="Too small.")
    better, noise = compare((11, 21.1, 31), (10, 20, 30)), compare((1, 9), (2, 3))
    worse = compare((10, 20, 30), (11, 21.1, 31))
    assert describe_verdict(claim, [better]) == REPRODUCED
    assert describe_verdict(claim, [worse]) == f"{OTHER_WAY}. Too small."
    assert describe_verdict(claim, [worse, noise]) == f"{OTHER_WAY} in 1 of 2. Too small."
    coarse = replace(noise, coarse=True)
    assert describe_verdict(claim, [worse, coarse]).startswith(f"{OTHER_WAY} in 1 of 2; 1 of 2 comparisons cannot tell")
    assert describe_verdict(claim, [coarse]) == "cannot tell (too few seeds). Too small."
    assert describe_verdict(claim, [better, noise]) == f"{ONLY}: quick, a over b. Too small."
    assert describe_verdict(claim, []) == NOT_RUN
    assert describe_comparisons([better] * 4).startswith(
        "4 of 4 comparisons hold beyond the noise, 0 are the other way round"
    )


def test_claim_may_compare_places_of_two_columns() -> None:
    lines = {("a", "x", "accuracy %"): Line(2, None, 2, (2, 2.1)), ("a", "y", "accuracy %"): Line(1, None, 2, (1, 1.1))}
    claim = PaperClaim("p", "s", "t", "f", "fedsam_emnist", "client accuracy %", (("a @ x", "a @ y"),))
    lines = {(row, column, claim.metric): line for (row, column, _), line in lines.items()}
    [gained] = compare_results(claim, [Result(claim.study, "quick", "c", "", lines)])
    assert gained.mean == pytest.approx(1)


def test_weak_points_are_chance_and_saturation() -> None:
    sentences = weak_points(
        {("x", "accuracy %"): [("a", 18.9), ("b", 19.1)], ("", "accuracy %"): [("a", 91), ("b", 93.9)]}, 10
    )
    assert sentences[0].startswith("accuracy % at x: at chance (10 %) or near it: a.")
    assert sentences[1].startswith("accuracy %: saturated, all rows are between 91.0 and 93.9 %")
    assert not weak_points({("", "accuracy %"): [("a", 91), ("b", 95)]}, 10)


def test_intervals_stay_in_the_possible_range() -> None:
    # arcsines of roots 1.4706, 1.5392, 1.3694: mean 1.4597, half width 4.3027 * .0854 / sqrt 3 = .2122; over pi / 2
    assert bounded_interval((99.0, 99.9, 96.0), (0, 100)) == pytest.approx((89.91, 100.0), abs=0.01)
    assert bounded_interval((0.0, 0.5, 3.0), (0, 100)) == pytest.approx((0.0, 8.7), abs=0.1)
    low, high = bounded_interval((0.1, 0.2, 3.0), (0, INF)) or (-1, -1)
    assert 0 < low < 1.1 < high
    assert bounded_interval((1.0,), (0, 100)) is None
    assert bounded_interval((2.0, 2.0), (0, 100)) == (2.0, 2.0)
