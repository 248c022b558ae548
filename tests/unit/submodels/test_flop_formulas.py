"""The import of PyTorch's formulas for FLOPs does not import Triton."""

import os
import subprocess
import sys
from pathlib import Path

CODE = """
import sys
import fedraa.submodels.meter
assert "triton" not in sys.modules
import triton
assert triton.MARK == 1
"""


def test_triton_is_not_imported_and_can_be_imported_later(tmp_path: Path) -> None:
    (tmp_path / "triton").mkdir()
    (tmp_path / "triton" / "__init__.py").write_text("MARK = 1\n")
    paths = [str(tmp_path), *filter(None, sys.path)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    ended = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
