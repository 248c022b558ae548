"""Whatever is typed or lies in a file: it runs, or it is refused in one sentence, and then nothing was written."""

import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedraa import Experiment
from fedraa import api as front
from fedraa.cli.main import main
from fedraa.rundir.history import History


def fuzz(examples: int) -> settings:
    """The same examples every time."""
    allowed = [HealthCheck.function_scoped_fixture]
    return settings(max_examples=examples, deadline=None, derandomize=True, suppress_health_check=allowed)


QUICK = ["--engine", "local", "--updates", "2", "--clients", "3", "--hidden", "8", "--local-steps", "1", "--quiet"]
TROUBLE = ("Traceback", "Error:")


def say(arguments: list[str]) -> tuple[int, str]:
    """The exit code and what went to stderr; what escapes `main` fails the test."""
    err = StringIO()
    with redirect_stdout(StringIO()), redirect_stderr(err):
        code = main(arguments)
    return code, err.getvalue()


def is_one_sentence(text: str) -> bool:
    return (
        text.startswith("fedraa: ")
        and text.count("\n") == 1
        and text.endswith("\n")
        and not any(word in text for word in TROUBLE)
    )


@pytest.fixture
def nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run ends where its first task would begin: what is refused must be so before."""
    monkeypatch.setattr(front, "_execute", lambda *args, **kwargs: None)


WORDS = st.sampled_from(
    [
        "-1",
        "0",
        "1",
        "2",
        "3",
        "0.5",
        "1e-9",
        "1e308",
        "-0.0",
        "nan",
        "inf",
        "-inf",
        "99999999999999999999",
        "4294967296",
        "1:0.5,3:0.5",
        "none",
        "None",
        "all",
        "sample:2",
        "bernoulli:0.5",
        "topk:0.1",
        "8bit",
        "lognormal:0.5",
        "steps:1:0.1",
        "cosine:5",
        "ray",
        "cuda",
        "fedavg",
        "ram-fed",
        "ist+scaffold",
        "cnn",
        "vit-small",
        "ü",
        "..",
        "/",
    ]
)
TEXT = WORDS | st.just("") | st.text(max_size=12) | st.builds("{}:{}".format, WORDS, WORDS)
FIELDS = sorted(set(Experiment.model_fields) - {"out", "quiet", "address", "workers"})
FLAGS = st.dictionaries(st.sampled_from(FIELDS), st.lists(TEXT, max_size=3), min_size=1, max_size=3)


@fuzz(50)
@given(flags=FLAGS)
@pytest.mark.usefixtures("nothing_runs")
def test_flags(flags: dict[str, list[str]], tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [word for name, values in flags.items() for word in (f"--{name.replace('_', '-')}", *values)]
    code, said = say(["run", *QUICK, "--out", str(out), *words])
    assert (code == 0 and said == "") or (code == 2 and is_one_sentence(said)), (words, code, said)
    assert not out.exists()


JSON = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.lists(st.integers(), max_size=2)
)
NUMBERS = st.sampled_from(["1", "0", "-1", "2.5", "nan", "inf", "", "x", "1e400", '"', "1,1"])


def table(columns: list[str]) -> st.SearchStrategy[bytes]:
    """CSV files about right, and bytes of any kind."""
    head = st.lists(st.sampled_from([*columns, "", "colour"]), min_size=1, max_size=4)
    rows = st.lists(st.lists(NUMBERS, min_size=1, max_size=4), max_size=4)
    lines = st.builds(lambda *all_: "\n".join(",".join(line) for line in (all_[0], *all_[1])), head, rows)
    return lines.map(str.encode) | st.binary(max_size=40)


FLEETS = table(["compute", "downlink", "uplink", "latency", "memory"])
SPANS = table(["client", "start", "end"])


@fuzz(15)
@given(content=FLEETS, other=SPANS, units=st.sampled_from(["relative", "physical"]))
@pytest.mark.usefixtures("nothing_runs")
def test_csv_files(content: bytes, other: bytes, units: str, tmp_path: Path) -> None:
    for flag, name, text in (("--capabilities", "fleet.csv", content), ("--availability", "there.csv", other)):
        (tmp_path / name).write_bytes(text)
        code, said = say(["run", *QUICK, "--out", str(tmp_path / "run"), flag, str(tmp_path / name), "--units", units])
        assert (code == 0 and said == "") or (code == 2 and is_one_sentence(said)), (text, code, said)
        assert not (tmp_path / "run").exists()


ARRAYS = ("x_train", "y_train", "x_test", "y_test")
DTYPES = st.sampled_from(["f4", "f8", "f2", "i8", "i4", "u1", "?", "U3", "c8", "M8[s]"])


@st.composite
def archives(draw: st.DrawFn) -> bytes:
    """Archives of arrays about right, whole or torn."""
    rows, columns = draw(st.integers(0, 12)), draw(st.sampled_from([(), (4,), (3, 2), (1, 8, 8), (0,)]))
    arrays: dict[str, Any] = {}
    for name in draw(st.sets(st.sampled_from(ARRAYS), min_size=3)):
        kind = draw(DTYPES) if draw(st.booleans()) else ("f4" if name[0] == "x" else "i8")
        shape = (rows, *columns) if name[0] == "x" else (rows + draw(st.integers(0, 1)),)
        values = np.arange(int(np.prod(shape))).reshape(shape) % draw(st.integers(1, 5))
        arrays[name] = values.astype(kind)
        if kind[0] == "f" and values.size and draw(st.booleans()):
            arrays[name].flat[0] = draw(st.sampled_from([np.nan, np.inf, -1.0]))
    stream = BytesIO()
    np.savez(stream, **arrays)
    return draw(torn(stream.getvalue()))


def torn(content: bytes) -> st.SearchStrategy[bytes]:
    """What may become of a file: nothing, an early end, other bytes somewhere."""

    def change(where: int, bytes_: bytes) -> bytes:
        return content[:where] + bytes_ + content[where + len(bytes_) :]

    place = st.integers(0, max(0, len(content) - 1))
    return (
        st.just(content)
        | place.map(lambda end: content[:end])
        | st.builds(change, place, st.binary(min_size=1, max_size=8))
    )


@fuzz(25)
@given(content=archives() | st.binary(max_size=60))
@pytest.mark.usefixtures("nothing_runs")
def test_archives_of_data(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "data.npz").write_bytes(content)
    flags = ["--dataset", str(tmp_path / "data.npz"), "--out", str(tmp_path / "run")]
    code, said = say(["run", *QUICK, *flags])
    assert (code == 0 and said == "") or (code == 2 and is_one_sentence(said)), (code, said)
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that has ended, with its last two checkpoints."""
    out = tmp_path_factory.mktemp("fuzz") / "run"
    assert main(["run", *QUICK, "--updates", "6", "--checkpoint-every", "2", "--out", str(out)]) == 0
    return out


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where the values of a tree of JSON are, inner ones too."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def changed(tree: Any, path: tuple[Any, ...], become: Callable[[dict[Any, Any], Any], None]) -> Any:
    """A copy of the tree in which `become` has changed the place `path`."""
    copy = json.loads(json.dumps({"root": tree}))
    *way, last = ("root", *path)
    inner = copy
    for key in way:
        inner = inner[key]
    become(inner, last)
    return copy.get("root")


def check_everything(run: Path) -> None:
    """Every command that reads a run directory gives a result, says that the log is wrong (1), or refuses (2)."""
    for command in (["status"], ["stop"], ["replay"], ["profile"], ["resume", "--quiet"]):
        code, said = say([*command, str(run)])
        assert (code == 0 and said == "") or (code in (1, 2) and is_one_sentence(said)), (command, code, said)


def check_report(run: Path) -> None:
    """A report of it, and of it beside others, which is made or refused."""
    page = run.with_name("page.html")
    for flags in ([], ["--landscape"]):
        code, said = say(["report", str(run), "--out", str(page), *flags])
        assert (code == 0 and said == "") or (code in (1, 2) and is_one_sentence(said)), (flags, code, said)


OTHER_KINDS: dict[str, Callable[[Path], object]] = {
    "missing": lambda path: None,
    "a directory": lambda path: path.mkdir(),
    "a named pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to(path.with_name("nothing")),
    "other bytes": lambda path: path.write_bytes(b"\xff\x00" * 40),
}


def other_kinds(path: Path) -> Iterator[str]:
    """A file becomes, one after another, what is none; said is what."""
    for kind, make in OTHER_KINDS.items():
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
        make(path)
        yield kind


def no_files(whole: Path, scratch: Path, killed: bool, most: int | None) -> None:
    """Copies of a run in which one file is none, each with every command."""
    names = [path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.is_file()]
    cases = [(name, kind) for name in names for kind in OTHER_KINDS if not killed or name.name != "summary.json"]
    for place in np.random.default_rng(killed).permutation(len(cases))[:most]:
        name, kind = cases[place]
        run = copied(whole, scratch)
        if killed:
            (run / "summary.json").unlink()
        (run / name).unlink()
        OTHER_KINDS[kind](run / name)
        if not killed and most is None:
            check_report(run)
        check_everything(run)


@pytest.mark.parametrize("killed", [False, True])
def test_what_is_no_file_in_a_run_directory(killed: bool, whole: Path, tmp_path: Path) -> None:
    no_files(whole, tmp_path, killed, 7)


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_whatever_is_no_file_in_a_run_directory(killed: bool, whole: Path, tmp_path: Path) -> None:
    no_files(whole, tmp_path, killed, None)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--dataset"], "data.npz"),
        (["--capabilities"], "fleet.csv"),
        (["--availability"], "there.csv"),
        (["--config"], "mine.toml"),
    ],
)
@pytest.mark.usefixtures("nothing_runs")
def test_what_is_no_file_as_a_flag(flags: list[str], name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    for kind in other_kinds(tmp_path / name):
        code, said = say(["run", *QUICK, *flags, str(tmp_path / name), "--out", str(tmp_path / "run")])
        assert code == 2, kind
        assert is_one_sentence(said), (kind, said)
        assert not (tmp_path / "run").exists()


def idx(array: "np.ndarray[Any, Any]", kind: int = 8) -> bytes:
    """As MNIST has its files: type, dimensions, sizes, values."""
    sizes = b"".join(size.to_bytes(4, "big") for size in array.shape)
    return bytes([0, 0, kind, array.ndim]) + sizes + array.tobytes()


@pytest.fixture
def mnist(tmp_path: Path) -> Path:
    raw = tmp_path / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    rng = np.random.default_rng(0)
    for split, rows in (("train", 40), ("t10k", 20)):
        images = rng.integers(0, 255, (rows, 28, 28)).astype(np.uint8)
        (raw / f"{split}-images-idx3-ubyte").write_bytes(idx(images))
        (raw / f"{split}-labels-idx1-ubyte").write_bytes(idx((np.arange(rows) % 10).astype(np.uint8)))
    return raw


MNIST: dict[str, Callable[[bytes], bytes]] = {
    "no bytes": lambda content: b"",
    "cut short": lambda content: content[: len(content) // 2],
    "cut in its head": lambda content: content[:6],
    "another type": lambda content: content[:2] + b"\x0d" + content[3:],
    "no type": lambda content: content[:2] + b"\x07" + content[3:],
    "more dimensions": lambda content: content[:3] + b"\x07" + content[4:],
    "no dimension": lambda content: content[:3] + b"\x00" + content[4:],
    "a huge size": lambda content: content[:4] + b"\xff\xff\xff\xff" + content[8:],
    "fewer": lambda content: content[:4] + (10).to_bytes(4, "big") + content[8:],
    "none": lambda content: content[:4] + bytes(4) + content[8:],
    "other bytes": lambda content: b"\x80\x04" + content,
}


@pytest.mark.usefixtures("nothing_runs")
def test_files_of_mnist(mnist: Path, tmp_path: Path) -> None:
    flags = ["--dataset", "mnist", "--data-dir", str(tmp_path / "data"), "--out", str(tmp_path / "run")]
    assert say(["run", *QUICK, *flags]) == (0, "")
    (tmp_path / "data").chmod(0o555)  # or what is damaged would be fetched
    for number, path in enumerate(sorted(mnist.iterdir())):
        content = path.read_bytes()
        for what, damage in list(MNIST.items())[number % 2 :: 2]:
            path.write_bytes(damage(content))
            code, said = say(["run", *QUICK, *flags])
            assert code == 2, (path.name, what)
            assert is_one_sentence(said), (path.name, what, said)
        for what in other_kinds(path) if number == 1 else ():
            code, said = say(["run", *QUICK, *flags])
            assert code == 2, (path.name, what)
            assert is_one_sentence(said), (path.name, what, said)
        path.write_bytes(content)
    (tmp_path / "data").chmod(0o755)


HEADS = [
    "{'descr': '<f4', 'fortran_order': False, 'shape': (10000000000000, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (100000000, 100), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }",
    "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 'x'), }",
    "{'descr': '|O', 'fortran_order': False, 'shape': (4,), }",
    "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (4,), }",
    "{'descr': 5, 'fortran_order': 3, 'shape': 7, }",
    "(" * 5000,
    "",
]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.usefixtures("nothing_runs")
def test_heads_of_arrays(head: str, tmp_path: Path) -> None:
    text = (head + "\n").encode()
    array = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        for name in ARRAYS:
            archive.writestr(f"{name}.npy", array)
    code, said = say(["run", *QUICK, "--dataset", str(tmp_path / "data.npz"), "--out", str(tmp_path / "run")])
    assert code == 2
    assert is_one_sentence(said), said


def test_an_availability_file_of_a_head_alone(tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("client,start,end\n")
    code, said = say(["run", *QUICK, "--availability", str(tmp_path / "there.csv")])
    assert (code, said.count("has no row")) == (2, 1)


def test_outputs_that_cannot_be_written(whole: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for out in (tmp_path / "folder", tmp_path / "file" / "page.html", Path("/proc/page.html")):
        code, said = say(["report", str(whole), "--out", str(out)])
        assert code == 2
        assert is_one_sentence(said), said


def test_own_code_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing.py").write_text(
        "import fedraa as fl\nclass Bad(fl.Callback):\n    def on_commit(self, event):\n        return {}['nothing']\n"
    )
    monkeypatch.chdir(tmp_path)
    code, said = say(["run", *QUICK, "--out", "run", "--callbacks", "failing:Bad"])
    assert code == 1
    assert said == (
        "fedraa: Bad.on_commit (failing.py, line 4) failed with KeyError: 'nothing'; stopped, with a checkpoint; go on "
        "with: fedraa resume run\n"
    )


def test_ctrl_c_before_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(front, "build", interrupted)
    assert say(["run", *QUICK, "--out", str(tmp_path / "run")]) == (
        130,
        "\nfedraa: stopped before the start; nothing was changed\n",
    )
    assert not (tmp_path / "run").exists()


@fuzz(12)
@given(data=st.data())
@pytest.mark.parametrize("name", ["config.json", "events.jsonl", "summary.json", "profile.json"])
def test_values_in_a_run_directory(name: str, data: st.DataObject, whole: Path, tmp_path: Path) -> None:
    run = copied(whole, tmp_path)
    lines = (run / name).read_text().splitlines() if name == "events.jsonl" else [(run / name).read_text()]
    number = data.draw(st.integers(0, len(lines) - 1))
    tree = json.loads(lines[number])
    path = data.draw(st.sampled_from(list(leaves(tree))))
    if path and data.draw(st.booleans()):
        tree = changed(tree, path, lambda inner, key: inner.pop(key))
    else:
        value = data.draw(JSON)
        tree = changed(tree, path, lambda inner, key: inner.__setitem__(key, value))
    lines[number] = json.dumps(tree)
    (run / name).write_text("\n".join(lines) + "\n")
    ended(run, data)
    check_everything(run)


@fuzz(15)
@given(data=st.data())
def test_bytes_in_a_run_directory(data: st.DataObject, whole: Path, tmp_path: Path) -> None:
    run = copied(whole, tmp_path)
    files = sorted(path for path in run.rglob("*") if path.is_file())
    for path in data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=2, unique=True)):
        path.write_bytes(data.draw(torn(path.read_bytes())))
    ended(run, data)
    check_everything(run)


def test_the_run_that_is_changed_is_whole(whole: Path, tmp_path: Path) -> None:
    run = copied(whole, tmp_path)
    assert say(["replay", str(run)]) == (0, "")
    (run / "summary.json").unlink()
    assert say(["resume", str(run), "--quiet"]) == (0, "")
    assert History(run).summary["model_sha256"] == History(whole).summary["model_sha256"]


def copied(whole: Path, to: Path) -> Path:
    run = to / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(whole, run)
    return run


def ended(run: Path, data: st.DataObject) -> None:
    """As of a run that has ended, or one that was killed."""
    if data.draw(st.booleans()):
        (run / "summary.json").unlink(missing_ok=True)
