"""Any arguments and any file: the command runs, or exits with code 2 and one error line, and writes nothing."""

import os
from pathlib import Path

import pytest
from fuzzing import QUICK, add_quick_flags, fuzz, is_one_sentence, replace_file, run_command
from hypothesis import given
from hypothesis import strategies as st

from fedraa import Experiment
from fedraa import api as front
from fedraa.rundir.atomic_files import PARTIAL, write_text

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
@pytest.mark.usefixtures("runs_are_skipped")
def test_arbitrary_flags_are_accepted_or_exit_with_code_2(flags: dict[str, list[str]], tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = [word for name, values in flags.items() for word in (f"--{name.replace('_', '-')}", *values)]
    code, said = run_command(["run", *add_quick_flags(words), "--out", str(out)])
    assert (code == 0 and said == "") or (code == 2 and is_one_sentence(said)), (words, code, said)
    assert not out.exists()


NUMBERS = st.sampled_from(["1", "0", "-1", "2.5", "nan", "inf", "", "x", "1e400", '"', "1,1"])


def table(columns: list[str]) -> st.SearchStrategy[bytes]:
    """Return CSV files that are nearly right, and random bytes."""
    head = st.lists(st.sampled_from([*columns, "", "colour"]), min_size=1, max_size=4)
    rows = st.lists(st.lists(NUMBERS, min_size=1, max_size=4), max_size=4)
    lines = st.builds(lambda *all_: "\n".join(",".join(line) for line in (all_[0], *all_[1])), head, rows)
    return lines.map(str.encode) | st.binary(max_size=40)


FLEET_TABLES = table(["compute", "downlink", "uplink", "latency", "memory", "watts_train"])
LINK_TABLES = table(["client", "end", "downlink", "uplink"])
AVAILABILITY_TABLES = table(["client", "start", "end"])


@fuzz(15)
@given(
    content=FLEET_TABLES, other=AVAILABILITY_TABLES, links=LINK_TABLES, units=st.sampled_from(["relative", "physical"])
)
@pytest.mark.usefixtures("runs_are_skipped")
def test_arbitrary_csv_files_are_accepted_or_exit_with_code_2(
    content: bytes, other: bytes, links: bytes, units: str, tmp_path: Path
) -> None:
    for flag, name, text in (
        ("--compute", "fleet.csv", content),
        ("--availability", "there.csv", other),
        ("--links", "links.csv", links),
    ):
        (tmp_path / name).write_bytes(text)
        code, said = run_command(
            ["run", *QUICK, "--out", str(tmp_path / "run"), flag, str(tmp_path / name), "--units", units]
        )
        assert (code == 0 and said == "") or (code == 2 and is_one_sentence(said)), (text, code, said)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (["--dataset"], "data.npz"),
        (["--compute"], "fleet.csv"),
        (["--availability"], "there.csv"),
        (["--links"], "links.csv"),
        (["--config"], "mine.toml"),
    ],
)
@pytest.mark.usefixtures("runs_are_skipped")
def test_unreadable_input_file_exits_with_code_2(flags: list[str], name: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    for kind in replace_file(tmp_path / name):
        code, said = run_command(["run", *QUICK, *flags, str(tmp_path / name), "--out", str(tmp_path / "run")])
        assert code == 2, kind
        assert is_one_sentence(said), (kind, said)
        assert not (tmp_path / "run").exists()


def test_availability_file_without_rows_is_refused(tmp_path: Path) -> None:
    (tmp_path / "there.csv").write_text("client,start,end\n")
    code, said = run_command(["run", *QUICK, "--availability", str(tmp_path / "there.csv")])
    assert (code, said.count("has no row")) == (2, 1)


def test_error_names_the_failing_callback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing.py").write_text(
        "import fedraa as fl\nclass Bad(fl.Callback):\n    def on_commit(self, event):\n        return {}['nothing']\n"
    )
    monkeypatch.chdir(tmp_path)
    code, said = run_command(["run", *QUICK, "--out", "run", "--callbacks", "failing:Bad"])
    assert code == 1
    assert said == (
        "fedraa: Bad.on_commit (failing.py, line 4) failed with KeyError: 'nothing'; stopped, with a checkpoint; "
        "resume with: fedraa resume run\n"
    )


def test_ctrl_c_before_the_start_exits_with_130_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(front, "build_run", interrupted)
    assert run_command(["run", *QUICK, "--out", str(tmp_path / "run")]) == (
        130,
        "\nfedraa: stopped before the start; nothing was changed\n",
    )
    assert not (tmp_path / "run").exists()


def test_csv_callback_refuses_a_named_pipe_without_a_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    callbacks = f"csv(path='{tmp_path / 'pipe'}')"
    code, said = run_command(["run", *QUICK, "--out", str(tmp_path / "run"), "--callbacks", callbacks])
    assert code == 2
    assert is_one_sentence(said), said


def test_write_text_replaces_a_named_pipe_with_the_temporary_name(tmp_path: Path) -> None:
    """A file has a temporary name while it is written. Something else may have this name."""
    path = tmp_path / "summary.json"
    os.mkfifo(tmp_path / f"summary.json{PARTIAL}")
    write_text(path, "3")
    assert path.read_text() == "3"
    assert list(tmp_path.iterdir()) == [path]
