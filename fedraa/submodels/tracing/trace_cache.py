"""A cache of traces on disk, so that a model is traced only once.

The cache has one file per trace, in the folder that the environment variable `FEDRAA_CACHE` names. The default folder
is `$XDG_CACHE_HOME/fedraa` or ~/.cache/fedraa. An empty variable turns the cache off.

The name of a file is a digest of the module without weights, the shapes of the example and the versions of the
libraries. The file contains a digest of itself, and digests of all source files that ran in the trace.

A module is traced again if one of these files changed, the cache file is damaged, or the test of a submodel fails. A
model is not cached if it cannot be pickled or runs code without a file.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import pickle
import platform
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Timer
from types import CodeType, FrameType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedraa.data.tree import Tree, map_tree
from fedraa.submodels.flat import flat_layout
from fedraa.submodels.resize import Resize, SizeFormula
from fedraa.submodels.traced import Entry, Group, Traced
from fedraa.submodels.tracing.rules import described_rules
from fedraa.submodels.tracing.trace import copy_to_cpu, trace_module
from fedraa.submodels.tracing.verify import CutChecker

FORMAT = 2
# A trace that takes less time is not cached.
MIN_TRACE_S = 1.0
# A trace that takes more time is reported in the log.
REPORT_AFTER_S = 2.0
CACHE_VARIABLE = "FEDRAA_CACHE"
_IMPORTED = time.time()


def trace_once(module: nn.Module, example: Tree, report: Callable[[str], None] | None = None) -> Traced:
    """Return the traced module. Read it from the cache if the same module was traced before.

    Args:
        module: The module.
        example: A batch of at least two inputs.
        report: A function that gets a line of text if tracing takes long.
    """
    path = _entry_path(module, example)
    slow = _report_slow(f"tracing {type(module).__name__}: searching for units that can be cut", report)
    if path is None:
        with slow:
            return trace_module(module, example)
    cached = _read_entry(path, module)
    if cached is not None and _cuts_hold(cached, example):
        return cached
    started = time.monotonic()
    codes: set[CodeType] = set()
    with slow, _collect_codes(codes) as noted:
        traced = trace_module(module, example)
    if noted and time.monotonic() - started >= MIN_TRACE_S:
        _write_entry(path, traced, codes)
    return traced


def _entry_path(module: nn.Module, example: Tree) -> Path | None:
    """Return the path of a module's cache file, or None if the module cannot be cached."""
    folder = _cache_folder()
    if folder is None:
        return None
    key = _entry_name(module, example)
    if key is None:
        return None
    return folder / f"{key}.json"


def _cuts_hold(cached: Traced, example: Tree) -> bool:
    """Return True if the module can be cut into submodels with the cached groups in this process.

    The groups may be wrong, because the module may depend on settings that are not part of the cache file's name.
    """
    groups = range(len(cached.groups))
    if not groups:
        return True
    try:
        checker = CutChecker(cached, map_tree(lambda part: part.cpu(), example), large=True)
        return checker.find_failure(cached, groups) is None
    # The module is then traced again, which reports the problem.
    except Exception:
        return False


@contextmanager
def _report_slow(text: str, report: Callable[[str], None] | None) -> Iterator[None]:
    """Call `report` with the text if the block takes longer than `REPORT_AFTER_S` seconds."""
    if report is None:
        yield
        return
    timer = Timer(REPORT_AFTER_S, report, (text,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _collect_codes(codes: set[CodeType]) -> Iterator[bool]:
    """Add to `codes` the code objects of all Python functions that run in the block.

    Yield True. If a profiler is active, yield False and collect nothing, because Python allows only one profiler.
    """
    if sys.getprofile() is not None:
        yield False
        return

    def note_code(frame: FrameType, event: str, argument: object) -> None:
        codes.add(frame.f_code)

    sys.setprofile(note_code)
    try:
        yield True
    finally:
        sys.setprofile(None)


def _cache_folder() -> Path | None:
    named = os.environ.get(CACHE_VARIABLE)
    if named == "":
        return None
    if named is not None:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".cache") / "fedraa"
    except RuntimeError:
        # Without a home directory there is no default folder.
        return None


class _Shapes(pickle.Pickler):
    """A pickler that omits the values of parameters. Its output is hashed for the name of the cache file."""

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(stream, protocol=5)
        self._seen: dict[int, int] = {}

    def persistent_id(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return None
        number = self._seen.setdefault(id(value), len(self._seen))
        form = value.requires_grad, str(value.dtype), tuple(value.shape), str(value.device)
        if isinstance(value, nn.Parameter):
            return number, form
        content = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
        return number, form, _hash_content(content)


def _entry_name(module: nn.Module, example: Tree) -> str | None:
    """Return the name of a module's cache file without `.json`.

    The result is None if no digest of the module, or of a custom rule for tracing, can be computed.
    """
    custom_rules = described_rules()
    if custom_rules is None:
        return None
    stream = io.BytesIO()
    try:
        _Shapes(stream).dump((module, map_tree(lambda part: (tuple(part.shape), str(part.dtype)), example)))
    # Pickling parts of the module may raise any error.
    except Exception:
        return None
    versions = [FORMAT, torch.__version__, np.__version__, platform.python_version(), _hash_own_code(), custom_rules]
    return _hash_content(json.dumps(versions).encode() + stream.getvalue())


def _hash_own_code() -> str:
    room = Path(__file__).parents[1]
    return _hash_content(b"".join(path.read_bytes() for path in sorted(room.rglob("*.py"))))


def _hash_content(content: Any) -> str:
    return hashlib.sha256(content).hexdigest()


def _digest_files(codes: set[CodeType]) -> dict[str, str] | None:
    """Return a digest of each file that defines one of these code objects.

    The files of fedraa, torch, NumPy and Python are omitted, because the name of the cache file depends on their
    versions. The result is None if a file is missing or changed after the process started.
    """
    room = str(Path(__file__).parents[1])
    known = (room, *(str(Path(str(module.__file__)).parent) for module in (torch, np)))
    library = sysconfig.get_path("stdlib")
    digests = {}
    for code in codes:
        name = code.co_filename
        if name.startswith("<frozen") or name.startswith(known):
            continue
        if name.startswith(library) and "site-packages" not in name:
            continue
        # Dataclasses and namedtuples create code without a file.
        if name == "<string>" and code.co_name.startswith(("__", "<lambda>")):
            continue
        try:
            # The process may have loaded an older version of a file that changed later.
            if os.stat(name).st_mtime >= _process_start():
                return None
            digests[name] = _hash_content(Path(name).read_bytes())
        except OSError:
            return None
    return digests


def _process_start() -> float:
    """Return the time when this process started, in seconds since 1970.

    Without /proc, it is the time when this module was imported.
    """
    try:
        ticks = float(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError):
        return _IMPORTED


def _write_entry(path: Path, traced: Traced, codes: set[CodeType]) -> None:
    """Write a trace to the cache atomically. Do nothing if the disk is full.

    Args:
        path: The cache file.
        traced: The traced module.
        codes: Python code that ran during the trace.
    """
    files = _digest_files(codes)
    if files is None:
        return
    sizes = {
        name: [[[list(step) for step in place], list(resize)] for place, resize in places.items()]
        for name, places in traced.sizes.items()
    }
    entry = {
        "files": files,
        "groups": [
            [g.name, g.size, [[e.tensor, e.dim, e.block] for e in g.entries], g.parameters] for g in traced.groups
        ],
        "uncut": dict(traced.uncut),
        "units": {name: {dim: units.tolist() for dim, units in dims.items()} for name, dims in traced.units.items()},
        "grouped": sorted(traced.grouped),
        "estimated": sorted(traced.estimated),
        "sizes": sizes,
    }
    text = json.dumps(entry).encode()
    with suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=path.parent, suffix=".partial")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(_hash_content(text).encode() + b"\n" + text)
            os.replace(partial, path)
        except BaseException:
            Path(partial).unlink(missing_ok=True)
            raise


def _read_entry(path: Path, module: nn.Module) -> Traced | None:
    """Return the traced module from its cache file, or None if the file is missing, damaged or outdated."""
    try:
        digest, _, text = path.read_bytes().partition(b"\n")
        if digest.decode() != _hash_content(text):
            return None
        entry = json.loads(text)
        if any(_hash_content(Path(name).read_bytes()) != known for name, known in entry["files"].items()):
            return None
    except (OSError, ValueError):
        return None
    module = copy_to_cpu(module)
    units = {
        name: {int(dim): np.array(units, np.int64) for dim, units in dims.items()}
        for name, dims in entry["units"].items()
    }
    return Traced(
        module,
        tuple(Group(name, size, tuple(Entry(*e) for e in entries), n) for name, size, entries, n in entry["groups"]),
        entry["uncut"],
        *flat_layout(module),
        units,
        frozenset(entry["grouped"]),
        frozenset(entry["estimated"]),
        {name: dict(map(_parse_place, places)) for name, places in entry["sizes"].items()},
    )


def _parse_place(item: Any) -> Any:
    """Convert an entry of the cache file into the place of a call in the code, and the sizes (Resize) in the call."""
    steps, (dim, outs, numbers, mixed) = item
    place = tuple((str(name), at) for name, at in steps)
    known = tuple(SizeFormula(fixed, tuple(map(tuple, times))) for fixed, times in numbers)
    return place, Resize(dim, tuple(outs), known, mixed)
