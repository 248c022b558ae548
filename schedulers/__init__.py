"""Schedulers, which choose the fragment of the model that a client trains next.

A scheduler may use the time of a task with each fragment, and the fragments' past updates and training losses.
"""

from collections.abc import Mapping
from types import MappingProxyType

from schedulers.baselines import MinimumPriority, Offline, Random
from schedulers.bound import delay_bound
from schedulers.greedy import GreRAA, LeastSent
from schedulers.protocol import Scheduler
from schedulers.scheduler_runner import FragmentStats, SchedulerRunner, WrongChoice, count_once, is_feasible

SCHEDULERS: Mapping[str, type[Scheduler]] = MappingProxyType(
    {
        "gre-raa": GreRAA,
        "least-sent": LeastSent,
        "random": Random,
        "minimum-priority": MinimumPriority,
        "offline": Offline,
    }
)

__all__ = [
    "SCHEDULERS",
    "FragmentStats",
    "GreRAA",
    "Scheduler",
    "SchedulerRunner",
    "WrongChoice",
    "count_once",
    "delay_bound",
    "is_feasible",
]
