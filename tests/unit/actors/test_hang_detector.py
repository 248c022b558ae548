"""The time limits of workers, against numbers that were computed by hand."""

from actors.pool.handles import HangDetector


def test_what_was_never_seen_is_borne_for_long() -> None:
    hang_detector = HangDetector()
    hang_detector.record_duration("train", work=10, seconds=1.0)
    assert hang_detector.bound("evaluate", 1) == 3600


def test_it_is_twenty_times_the_slowest_pace_so_far_and_a_minute_at_least() -> None:
    hang_detector = HangDetector()
    # The three tasks take 0.05, 0.5 and 0.1 s per unit of work.
    hang_detector.record_duration("train", work=100, seconds=5.0)
    hang_detector.record_duration("train", work=100, seconds=50.0)
    hang_detector.record_duration("train", work=1000, seconds=100.0)
    assert hang_detector.bound("train", work=100) == 20 * 0.5 * 100
    assert hang_detector.bound("train", work=1) == 60
