"""Error feedback: a client keeps the error of its compression, so that its later updates correct the error.

C is the compressor.
ef (Karimireddy et al. 2019, arXiv 1901.09847, Algorithm 2), with e = 0 at first:
    p = delta + e;  send C(p);  e <- p - C(p)
ef21 (Richtarik et al. 2021, arXiv 2106.05203, Algorithm 2), with g = 0 at first:
    send c = C(delta - g);  g <- g + c at the client and at the server;  the server uses g as the client's delta

Each client keeps one number (e or g) for each coordinate of the model. A task reads and changes only the coordinates
that it trains. If a task fails, e and g stay unchanged. If only some clients take part in a round, `ef21` averages only
the g of these clients.
"""

from collections.abc import Callable
from typing import Literal

from torch import Tensor

from fedraa.client.kept_buffer import KeptBuffer

ErrorFeedback = Literal["none", "ef", "ef21"]
# The values e or g of a client.
FEEDBACK = KeptBuffer("error_feedback")


def compress_with_feedback(
    kind: ErrorFeedback, delta: Tensor, kept: Tensor, compress: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the delta [k] that the server uses, and the new values e or g [k] that the client keeps.

    Args:
        kind: `ef` or `ef21`.
        delta: Trained weights minus received weights [k].
        kept: The client's e or g [k].
        compress: A function that returns a delta after compression and decompression.
    """
    if kind == "ef":
        corrected = delta + kept
        sent = compress(corrected)
        return sent, corrected - sent
    new = kept + compress(delta - kept)
    return new, new
