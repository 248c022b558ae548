"""A log with one error is inconsistent, and the message names the line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from replaying import Log, read, write

from fedraa.errors import Inconsistent
from fedraa.replay.replay import replay


def change(kind: str, field: str, value: Callable[[Any], Any]) -> Callable[[Log], int]:
    """Change one field of the twelfth line of a kind. Return its line number."""

    def edit(log: Log) -> int:
        line = [line for line in log if line["kind"] == kind][11]
        line[field] = value(line[field])
        return int(line["seq"]) + 1

    return edit


def lose(kind: str, field: str) -> Callable[[Log], int]:
    """Remove a field from the twelfth line of a kind. Return its line number."""

    def edit(log: Log) -> int:
        line = [line for line in log if line["kind"] == kind][11]
        del line[field]
        return int(line["seq"]) + 1

    return edit


CHANGES = {
    "fragment": change("dispatch", "fragment", lambda j: (j + 1) % 4),
    "version": change("dispatch", "version", lambda version: version + 1),
    "step": change("dispatch", "step", lambda step: step - 1),
    "client": change("dispatch", "client", lambda client: (client + 1) % 5),
    "count": change("dispatch", "fragment_updates", lambda counts: [counts[0] + 1, *counts[1:]]),
    "feasible": change("dispatch", "feasible_fragments", lambda feasible: feasible[:-1]),
    "cost": change("dispatch", "cost", lambda cost: np.nextafter(cost, 1)),
    "bytes down": change("dispatch", "bytes_down", lambda size: size + 4),
    "dispatch time": change("dispatch", "t", lambda t: np.nextafter(t, 1)),
    "commit time": change("commit", "t", lambda t: np.nextafter(t, 1)),
    "staleness": change("commit", "staleness", lambda staleness: staleness + 1),
    "global staleness": change("commit", "staleness_total", lambda staleness: staleness + 1),
    "weight": change("commit", "weight", lambda mix: np.nextafter(mix, 1)),
    "committed version": change("commit", "version", lambda version: version + 1),
    "base version": change("commit", "base_version", lambda version: version + 1),
    "task": change("commit", "task", lambda task: task + 1),
    "samples": change("commit", "samples", lambda samples: samples + 1),
    "missing field": lose("commit", "staleness"),
    "loss": change("commit", "train_loss", lambda loss: "low"),
    "kind": change("commit", "kind", lambda kind: "comit"),
    "evaluated step": change("eval", "step", lambda step: step + 1),
    "evaluation time": change("eval", "t", lambda t: np.nextafter(t, 1)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_changed_field_is_named_with_its_line(name: str, copy: Callable[[str], Path]) -> None:
    directory = copy("fed-raa")
    log = read(directory)
    line = CHANGES[name](log)
    write(directory, log)
    with pytest.raises(Inconsistent, match=rf"events\.jsonl line {line}[ :]"):
        replay(directory)


ROUND_CHANGES = {
    "round": ("round", "round", 1),
    "clients": ("round", "clients", 1),
    "coverage_min": ("round", "coverage_min", 1),
    "coverage_max": ("round", "coverage_max", -1),
    "uncovered": ("round", "uncovered", 1),
    "coverage_min_trained": ("round", "coverage_min_trained", 1),
    "longest_untrained": ("round", "longest_untrained", 1),
    "time": ("round", "t", 1e-9),
    "weight": ("commit", "weight", 1e-9),
    "version": ("commit", "version", -1),
    "count": ("dispatch", "step", -1),
}


@pytest.mark.parametrize("method", ["fed-raa-sync", "fedavg", "fedprox", "scaffold"])
@pytest.mark.parametrize("name", ROUND_CHANGES)
def test_changed_round_is_named_with_its_line(name: str, method: str, copy: Callable[[str], Path]) -> None:
    kind, field, by = ROUND_CHANGES[name]
    directory = copy(method)
    log = read(directory)
    line = [line for line in log if line["kind"] == kind][3]
    line[field] += by
    write(directory, log)
    with pytest.raises(Inconsistent, match=rf"line {line['seq'] + 1} \({kind}\) {field}: "):
        replay(directory)


@pytest.mark.parametrize("method", ["fed-raa", "fed-raa-sync", "fedavg"])
@pytest.mark.parametrize("renumbered", [False, True])
@pytest.mark.parametrize("damage", ["dropped", "duplicated", "swapped"])
def test_misplaced_line_is_caught(damage: str, renumbered: bool, method: str, copy: Callable[[str], Path]) -> None:
    directory = copy(method)
    genuine = read(directory)
    for place in range(len(genuine) - 1):
        log = genuine.copy()
        if damage == "dropped":
            del log[place]
        elif damage == "duplicated":
            log.insert(place, log[place])
        else:
            log[place], log[place + 1] = log[place + 1], log[place]
        write(directory, [line | {"seq": seq} for seq, line in enumerate(log)] if renumbered else log)
        with pytest.raises(Inconsistent, match=r"events\.jsonl line \d+") as caught:
            replay(directory)
        line = int(str(caught.value).split("line ")[1].split()[0].rstrip(":"))
        assert line >= place + 1
        assert renumbered or line <= place + 2


COMMON = ("seq", "t", "task", "client", "fragment", "version")
COVERAGE = ("coverage_min", "coverage_max", "uncovered", "coverage_min_trained", "longest_untrained")
NUMBERS = {
    "dispatch": (*COMMON, "step", "cost", "bytes_down"),
    "commit": (*COMMON, "base_version", "staleness", "staleness_total", "weight", "bytes_up", "samples", "flops"),
    "round": ("seq", "t", "round", "clients", *COVERAGE),
}


@pytest.fixture(scope="module", params=["fed-raa", "fed-raa-random", "fedbuff", "fed-raa-sync", "fedavg", "splitfed"])
def scratch(
    request: pytest.FixtureRequest, genuine: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, str]:
    """Return a copy of a run to overwrite, and the text of its log."""
    directory = Path(shutil.copytree(genuine(request.param), tmp_path_factory.mktemp("scratch") / "copy"))
    return directory, (directory / "events.jsonl").read_text()


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_any_changed_number_is_caught(data: st.DataObject, scratch: tuple[Path, str]) -> None:
    """The lines are dispatch, commit and round lines; the measured `wall` and `train_loss` are not checked."""
    directory, text = scratch
    log = [json.loads(line) for line in text.splitlines()]
    line = data.draw(st.sampled_from([line for line in log if line["kind"] in NUMBERS]), "line")
    lists = [field for field in ("fragment_updates", "feasible_fragments") if line.get(field)]
    field = data.draw(st.sampled_from([*NUMBERS[line["kind"]], *lists]), "field")
    number = line["seq"] + 1
    holder, key = line, field
    if field in lists:
        holder, key = line[field], data.draw(st.integers(0, len(line[field]) - 1), "place")
    old = holder[key]
    if isinstance(old, int):
        new: Any = data.draw(st.one_of(st.just(old + 1), st.just(old - 1), st.integers(-(10**12), 10**12)), "new")
    else:
        new = data.draw(st.one_of(st.just(float(np.nextafter(old, 9))), st.floats(0, 10, allow_nan=False)), "new")
    assume(new != old)
    holder[key] = new
    write(directory, log)
    with pytest.raises(Inconsistent, match=rf"events\.jsonl line {number} "):
        replay(directory)


@pytest.mark.parametrize("method", ["fed-raa", "fedavg"])
def test_every_prefix_of_a_log_is_consistent(method: str, copy: Callable[[str], Path]) -> None:
    """A killed run leaves such a log."""
    directory = copy(method)
    (directory / "summary.json").unlink()
    # The checkpoints belong to the end of the run.
    shutil.rmtree(directory / "checkpoints")
    log = read(directory)
    for length in range(len(log)):
        write(directory, log[:length])
        assert "has not ended" in replay(directory)
