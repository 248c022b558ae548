"""Delay-adaptive asynchronous SGD: shorter steps for stale updates (Koloskova, Stich, Jaggi 2022).

When delta arrives with staleness k:
    theta <- theta + server_lr * N / max(N, k) * delta          # N clients train at a time

Read next: methods/fedbuff.py (the rule, with a buffer of one), server/staleness.py (the weight).
"""

from fedraa.composition.method import ONE_STEP_THEORY, PLAIN_SGD, Method
from fedraa.composition.registry import register
from fedraa.methods.fedbuff import FedBuffRule
from fedraa.server.schedule import AsyncSchedule

register(
    Method(
        name="delay-adaptive",
        paper="Koloskova, Stich, Jaggi 2022",
        note="steps of N / max(N, staleness)",
        formula="`theta ← theta + server_lr · N / max(N, staleness) · delta`.",
        when="Much staler updates than usual should have less weight, but no update should be ignored.",
        local=PLAIN_SGD,
        update=FedBuffRule(size=1, staleness="delay-adaptive"),
        schedule=AsyncSchedule(),
        paper_settings=ONE_STEP_THEORY,
    )
)
