"""The file SHA256SUMS with the digests of a finished run's files, for `sha256sum -c`."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedraa.errors import Inconsistent, read_failure
from fedraa.reading.regular_files import read_regular_file
from fedraa.rundir.atomic_files import hash_file, write_text
from fedraa.rundir.file_names import CLIENTS, CONFIG, EVALS, EVENTS, MODEL, PARTITION, SEAL, SUMMARY
from fedraa.rundir.profile import PROFILE

FILES = (CONFIG, EVENTS, EVALS, MODEL, PROFILE, SUMMARY)
OPTIONAL = (CLIENTS, PARTITION)
_LINE = re.compile(r"(?P<digest>[0-9a-f]{64})  (?P<name>\S+)")


def write_seal(directory: Path, pending: Mapping[str, str]) -> None:
    """Write the digests of the files. `pending` has the texts of files that will be written later."""
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in pending.items()}
    names = [*FILES, *(name for name in OPTIONAL if (directory / name).exists())]
    digests |= {name: hash_file(directory / name).hexdigest() for name in names if name not in pending}
    write_text(directory / SEAL, _seal_text(digests))


def check_seal(directory: Path, names: Sequence[str] = (*FILES, *OPTIONAL)) -> None:
    """Check that the files of a finished run are unchanged.

    Raises Inconsistent if a file has changed. The error names the first such file.
    """
    written = _read_seal(directory)
    for name in names:
        if name in OPTIONAL and name not in written and not (directory / name).exists():
            continue
        try:
            is_same = hash_file(directory / name).hexdigest() == written.get(name)
        except OSError as error:
            raise Inconsistent(
                name, f"the file cannot be read, although the run has ended: {error.strerror or error}"
            ) from None
        if not is_same:
            raise Inconsistent(name, f"the file is not the one that the run wrote; {SEAL} has another digest")


def _read_seal(directory: Path) -> dict[str, str]:
    try:
        text = read_regular_file(directory / SEAL).decode()
    except (OSError, ValueError) as error:
        raise Inconsistent(
            SEAL, f"the file cannot be read, although the run has ended: {read_failure(error)}"
        ) from None
    digests = {match["name"]: match["digest"] for match in _LINE.finditer(text)}
    if not set(FILES) <= digests.keys() <= {*FILES, *OPTIONAL} or _seal_text(digests) != text:
        raise Inconsistent(SEAL, "it is damaged", expected=f"the digests of {', '.join(FILES)}")
    return digests


def _seal_text(digests: Mapping[str, str]) -> str:
    return "".join(f"{digests[name]}  {name}\n" for name in (*FILES, *OPTIONAL) if name in digests)
