"""Who trains what next: pure decisions over a table of costs and the counts of past updates."""

from schedulers.bound import delay_bound, offline_sets
from schedulers.fragments import SCHEDULERS, TOLERANCE, GreRAA, MinimumPriority, Offline, Random, Scheduler

__all__ = [
    "SCHEDULERS",
    "TOLERANCE",
    "GreRAA",
    "MinimumPriority",
    "Offline",
    "Random",
    "Scheduler",
    "delay_bound",
    "offline_sets",
]
