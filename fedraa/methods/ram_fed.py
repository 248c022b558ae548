"""RA-Fed and RAM-Fed: clients train regions of the model; a memory moves regions that no client trains.

RA-Fed (RAM-Fed, Algorithm 1):
    client n trains the regions of its mask m_n
    each weight <- weight + mean delta of the clients that trained it; it stays if no client trained it
RAM-Fed (Algorithm 2), with Delta_n = (theta - w_n) / lr and u_n the last Delta_n of client n:
    v = mean over all N clients of u_n + mean over the clients that trained the weight of (Delta_n - u_n)
    theta <- theta - lr * v
    u_n <- Delta_n where client n trained

Read next: submodels/policies/regions.py (the masks), aggregation/coverage_mean.py (the mean of RA-Fed),
server/round_server.py (the round).
"""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from fedraa.aggregation.aggregator import Aggregator, ClientDelta, RoundTotals
from fedraa.aggregation.registry import AGGREGATOR
from fedraa.composition.method import Method, PaperSettings
from fedraa.composition.registry import register
from fedraa.messages import Index, Mask, Vector
from fedraa.server.round_update import Mean
from fedraa.submodels.policies.regions import Arbitrary
from fedraa.vectors.chunked import borrow_scratch, map_chunks
from fedraa.vectors.client_rows import ClientRows
from fedraa.vectors.reusable_buffer import ReusableBuffer

_UNITS = "no paper: regions of units are drawn for each layer, so that a client trains far less than half of theta"


@AGGREGATOR.register("memorised")
@dataclass
class MemorisedMean(Aggregator):
    """The mean of RAM-Fed, Algorithm 2, with a memory of every client's last update of every coordinate.

    Updates are in gradient units, Delta = -delta / lr. For each coordinate, v = mean_n u_n + (1/Gamma) * sum of
    (Delta_n - u_n) over the Gamma clients that trained it, and theta -= lr v. Then u_n <- Delta_n on the trained
    coordinates. If Gamma is 0, the coordinate moves by the mean memory. u_n [d] is allocated when client n first takes
    part, and counts as 0 before.

    Attributes:
        mifa: True for the form of the authors' released code, which is the method MIFA: v = mean_n u_n with the new
            u_n.
    """

    mifa: bool = False

    keeps: ClassVar[str] = "u_n [N, d]"
    weighs: ClassVar[bool] = False
    corrects: ClassVar[bool] = True
    state_fields: ClassVar[tuple[str, ...]] = ("_memory", "_mean", "_change")

    def start(self, size: int, clients: int) -> None:
        self._clients = clients
        self._memory = ClientRows(size, clients, lambda: np.zeros(size, np.float32))
        self._mean = np.zeros(size, np.float32)
        self._change = np.zeros(size, np.float32)
        self._room = ReusableBuffer(size, np.float32)

    def add(self, contribution: ClientDelta) -> None:
        row = self._memory[contribution.client]
        lr = np.float32(-contribution.lr)

        def remember_piece(place: Index | slice, delta: Vector) -> None:
            update = np.divide(delta, lr, out=borrow_scratch("update", len(delta)))
            old = row[place]
            self._change[place] += np.subtract(update, old, out=borrow_scratch("times", len(delta)))
            row[place] = update

        contribution.change.join(remember_piece)

    def finish(self, totals: RoundTotals) -> tuple[Vector, Mask]:
        size = len(self._mean)
        clients = np.float32(self._clients)
        lr = np.float32(-totals.lr)
        # The last buffer need not be cleared, because every value is overwritten.
        delta: Vector | None = self._room.last()
        if delta is None:
            delta = self._room.filled(0)

        def average_piece(piece: slice) -> None:
            count = totals.counts[piece]
            old = self._mean[piece]
            correction = np.divide(self._change[piece], count, out=np.zeros_like(old), where=count > 0)
            v = old + correction
            self._mean[piece] = self._memory.sum(piece) / clients
            delta[piece] = lr * (self._mean[piece] if self.mifa else v)
            self._change[piece].fill(0)

        map_chunks(size, average_piece)
        return delta, np.broadcast_to(np.True_, size)

    def memory(self, size: int, clients: int) -> int:
        return 4 * size * (clients + 3)


RA_FED = register(
    Method(
        name="ra-fed",
        paper="RAM-Fed, Algorithm 1",
        formula=(
            "Clients train regions of the model; each weight moves by the mean delta of the clients that trained it, "
            "and stays if no client trained it."
        ),
        when=(
            "To study coverage: how many clients train which regions. `--submodel region-schedule` sets the coverage "
            "instead of drawing it, and `--capacities auto` lets the speed of each device set its number of regions."
        ),
        submodel=Arbitrary(),
        paper_settings=PaperSettings(
            source="RAM-Fed, Section 6, MNIST",
            values={"lr": 0.01, "momentum": 0.5, "local_steps": 5, "batch_size": 128},
            unstated="the number of rounds, the initial memory",
        ),
    )
)
RAM_FED = register(
    replace(
        RA_FED,
        name="ram-fed",
        paper="RAM-Fed, Algorithm 2",
        formula=(
            "`v = mean of all u_n + mean over the clients that trained it of (D_n − u_n); theta ← theta − lr v`; u_n "
            "is the last update of client n."
        ),
        when="Some regions are not trained for several rounds: the memory still moves them.",
        update=Mean(aggregator=MemorisedMean()),
    )
)
register(
    replace(
        RAM_FED,
        name="ram-fed-mifa",
        variant_of="ram-fed",
        paper="RAM-Fed, released code",
        note="the mean as in the released code of RAM-Fed, which equals MIFA; masks as in the paper",
        formula="`v = mean of all u_n`, with the new u_n; the form of the released code.",
        when="To repeat the paper's code instead of its text.",
        update=Mean(aggregator=MemorisedMean(mifa=True)),
    )
)
register(
    replace(
        RA_FED,
        name="ra-fed-units",
        variant_of="ra-fed",
        note=_UNITS,
        formula="As ra-fed, but a client trains only weights between units that are both in its regions.",
        when="To compare with ra-fed: clients train far less of the matrices between hidden layers.",
        submodel=Arbitrary(regions="units"),
    )
)
register(
    replace(
        RAM_FED,
        name="ram-fed-units",
        variant_of="ram-fed",
        note=_UNITS,
        formula="As ram-fed, on the same weights as ra-fed-units.",
        when="To compare with ram-fed: clients train far less of the matrices between hidden layers.",
        submodel=Arbitrary(regions="units"),
    )
)
