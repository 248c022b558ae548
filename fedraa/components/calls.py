"""Turn an exception of a custom component into one sentence."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

_SENTENCE = re.compile(r"[a-z_]+: ")  # ours, which names a field


@contextmanager
def calling(where: str, part: object) -> Iterator[None]:
    """Whatever a part raises within is a ValueError, a sentence that names the field `where` and the part."""
    try:
        yield
    except (Exception, SystemExit) as error:
        if isinstance(error, ValueError) and _SENTENCE.match(str(error)):
            raise
        who = getattr(part, "__qualname__", type(part).__qualname__)
        raise ValueError(f"{where}: {who} failed with {type(error).__name__}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """What an error says, which may be of several lines, as a part of a sentence."""
    return " ".join(str(error).split())
