"""Metrics of a run for Ray's dashboard and Prometheus."""

from collections import defaultdict
from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge, Histogram

from fedraa.callbacks import Callback, Event, Progress
from fedraa.ledger.bad_clients import RETRY

# Upper bounds of the buckets of two histograms. STALENESS is counted in server updates. SECONDS is for durations.
STALENESS = [0.5, 1.5, 2.5, 4.5, 8.5, 16.5, 32.5, 64.5, 128.5]
SECONDS = [0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0]
NAMES = {
    "updates": "fedraa_updates",
    "staleness": "fedraa_staleness_steps",
    "mix": "fedraa_mix_seconds",
    "idle": "fedraa_idle_share",
    "workers": "fedraa_workers",
    "accuracy": "fedraa_accuracy",
    "bytes": "fedraa_bytes",
    "faults": "fedraa_faults",
    "dropped": "fedraa_dropped",
    "quarantined": "fedraa_quarantined",
}


class Metrics(Callback):
    """A callback in the server's process that updates the metrics of a run.

    The class counts, and passes the sums to Ray's counters a few times per second. Calls of these counters at every
    update would slow the server down.

    Args:
        run: The name of the run, which becomes the tag `run`.
    """

    blocking = False

    def __init__(self, run: str) -> None:
        # Ray accepts only ASCII in the values of tags.
        run_tag = {"run": run.encode("ascii", "backslashreplace").decode()}
        tags = tuple(run_tag)
        self._updates = Counter(NAMES["updates"], "Applied updates", tags)
        self._staleness = Histogram(NAMES["staleness"], "Staleness of an update, in steps", STALENESS, tags)
        self._mix = Histogram(NAMES["mix"], "Real seconds to apply an update (samples)", SECONDS, tags)
        self._idle = Gauge(NAMES["idle"], "Share of the workers without work", tags)
        self._workers = Gauge(NAMES["workers"], "Workers that have started", tags)
        self._accuracy = Gauge(NAMES["accuracy"], "Test accuracy", tags)
        self._bytes = Counter(NAMES["bytes"], "Bytes sent and received by the devices", (*tags, "way"))
        self._faults = Counter(NAMES["faults"], "Faults", tags)
        self._dropped = Counter(NAMES["dropped"], "Tasks that were dropped because their clients failed", tags)
        self._quarantined = Counter(NAMES["quarantined"], "Quarantined clients", tags)
        counters = (self._updates, self._bytes, self._faults, self._dropped, self._quarantined)
        for metric in (*counters, self._staleness, self._mix, self._idle, self._workers, self._accuracy):
            metric.set_default_tags(run_tag)
        # The amounts that Ray's counters lack, by counter and value of the tag `way`.
        self._amounts: dict[tuple[Counter, str | None], float] = defaultdict(float)

    def on_commit(self, event: Event) -> None:
        self._amounts[self._updates, None] += 1
        self._staleness.observe(_number_of(event, "staleness"))
        self._count_bytes("up", event)

    def on_dispatch(self, event: Event) -> None:
        self._count_bytes("down", event)

    def on_eval(self, step: int, t: float, metrics: Mapping[str, float]) -> None:
        if "accuracy" in metrics:
            self._accuracy.set(metrics["accuracy"])

    def on_fault(self, event: Event) -> None:
        self._faults.inc()

    def on_drop(self, event: Event) -> None:
        self._dropped.inc()
        if event["action"] != RETRY:
            self._quarantined.inc()

    def on_close(self) -> None:
        self._publish_counts()

    def on_progress(self, progress: Progress) -> None:
        """Publish the counts, and record the last update and the workers."""
        self._publish_counts()
        self._mix.observe(progress.commit_seconds)
        self._workers.set(progress.workers)
        self._idle.set(1 - progress.busy / progress.workers if progress.workers else 0.0)

    def _count_bytes(self, way: str, event: Event) -> None:
        self._amounts[self._bytes, way] += _number_of(event, f"bytes_{way}")

    def _publish_counts(self) -> None:
        for (counter, way), amount in self._amounts.items():
            # Ray's counter raises an error for an increment of 0.
            if amount:
                counter.inc(amount, {} if way is None else {"way": way})
        self._amounts.clear()


def _number_of(event: Event, name: str) -> float:
    value = event[name]
    assert isinstance(value, int | float)
    return value
