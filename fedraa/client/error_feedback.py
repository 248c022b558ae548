"""Error feedback: a client adds the compression error of earlier updates to its later updates.

C is the compressor.
ef (Karimireddy et al. 2019, arXiv 1901.09847, Algorithm 2), with e = 0 at first:
    p = delta + e;  send C(p);  e <- p - C(p)
ef21 (Richtarik et al. 2021, arXiv 2106.05203, Algorithm 2), with g = 0 at first:
    send c = C(delta - g);  g <- g + c at the client and at the server;  the server uses g as the client's delta

Each client keeps one number (e or g) for each coordinate of the model. A task reads and changes only the numbers of the
coordinates that it trains. If a task fails, e and g stay unchanged. With `ef21`, a round averages only the g of the
clients that take part in it.
"""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from fedraa.client.kept_buffer import KeptBuffer

ErrorFeedback = Literal["none", "ef", "ef21"]
FEEDBACK = KeptBuffer("error_feedback")


def compress_with_feedback(
    kind: ErrorFeedback, delta: Tensor, kept: Tensor, compress: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the delta [k] that the server uses, and the values [k] that the client keeps.

    The client keeps the vector e of the algorithm `ef`, or the vector g of the algorithm `ef21`.

    Args:
        kind: `ef` or `ef21`.
        delta: Trained weights minus received weights [k].
        kept: The values [k] that the client kept from its last task: e or g.
        compress: A function that returns a delta after compression and decompression.
    """
    if kind == "ef":
        corrected = delta + kept
        sent = compress(corrected)
        return sent, corrected - sent
    new = kept + compress(delta - kept)
    return new, new
