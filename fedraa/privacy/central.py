"""Central privacy: clip every update, add Gaussian noise to their sum (DP-FedAvg, McMahan et al. 2018).

    delta_i <- delta_i * min(1, clip / ||delta_i||)
    sum = sum of delta_i + N(0, (noise * clip)^2 I)
    rounds:  theta <- theta + server_lr * sum / D     D is the expected number of clients, even if fewer report
    buffer:  theta <- theta + server_lr * sum / K     after K updates
    other asynchronous methods: noise is added to every single update before the update rule

With submodels, the norm is over the client's coordinates. Noise is added to all trained coordinates. D is the number of
clients that trained a coordinate, which depends on devices, not on data. With the aggregator `filled`, D stays the
expected number of clients. The noise is pseudo-random and not cryptographically secure.

Use it if the clients trust the server. A `clip` of about the median norm of an update is a good start.

Read next: privacy/noisy_sum.py (clipping and noise), privacy/accountant.py (epsilon).
"""

from dataclasses import dataclass

from fedraa.privacy.privacy import PRIVACY, Privacy


@PRIVACY.register("central")
@dataclass
class Central(Privacy):
    """Clipped updates, with noise of standard deviation `noise * clip` on their sum (McMahan et al. 2018)."""
