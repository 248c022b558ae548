"""After a run has ended early, the user learns the next step: a command that works with the files of the run."""

from pathlib import Path

import pytest

from actors.cluster import engine
from fedraa.config.experiment import Experiment
from fedraa.engine.build import build_run
from fedraa.engine.resume import suggest_continuation
from fedraa.engine.run_spec import RunSpec
from fedraa.errors import Interrupted
from fedraa.rundir.file_names import CHECKPOINTS, CONFIG


@pytest.fixture(scope="module")
def spec() -> RunSpec:
    return build_run(Experiment(hidden=(8,), clients=2, engine="local"))


def test_run_without_a_configuration_cannot_be_resumed(spec: RunSpec, tmp_path: Path) -> None:
    assert "resume" not in suggest_continuation(spec, tmp_path)
    stopped = engine._stop_error(spec, tmp_path)
    assert not isinstance(stopped, Interrupted)
    assert "resume" not in str(stopped)


def test_run_without_a_checkpoint_is_resumed_from_the_beginning(spec: RunSpec, tmp_path: Path) -> None:
    (tmp_path / CONFIG).touch()
    for text in (suggest_continuation(spec, tmp_path), str(engine._stop_error(spec, tmp_path))):
        assert "no checkpoint" in text
        assert text.endswith(f": fedraa resume {tmp_path}")


def test_run_with_a_checkpoint_is_resumed_from_it(spec: RunSpec, tmp_path: Path) -> None:
    (tmp_path / CONFIG).touch()
    (tmp_path / CHECKPOINTS).mkdir()
    (tmp_path / CHECKPOINTS / "00000010.ckpt").touch()
    stopped = engine._stop_error(spec, tmp_path)
    assert isinstance(stopped, Interrupted)
    for text in (suggest_continuation(spec, tmp_path), str(stopped)):
        assert "no checkpoint" not in text
        assert text.endswith(f"resume with: fedraa resume {tmp_path}")
