"""The time limits of workers, against numbers that were computed by hand."""

from fedraa.engine.hang_detector import HangDetector


def test_call_without_a_measured_duration_has_a_limit_of_one_hour() -> None:
    hang_detector = HangDetector()
    hang_detector.record_duration("train", work=10, seconds=1.0)
    assert hang_detector.bound("evaluate", 1) == 3600


def test_limit_is_20_times_the_slowest_pace_and_at_least_one_minute() -> None:
    hang_detector = HangDetector()
    # The three tasks take 0.05, 0.5 and 0.1 s per unit of work.
    hang_detector.record_duration("train", work=100, seconds=5.0)
    hang_detector.record_duration("train", work=100, seconds=50.0)
    hang_detector.record_duration("train", work=1000, seconds=100.0)
    assert hang_detector.bound("train", work=100) == 20 * 0.5 * 100
    assert hang_detector.bound("train", work=1) == 60
