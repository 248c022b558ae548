"""Two imports of torchvision: one fails because two operators are missing, and one for another reason."""

import subprocess
import sys
from pathlib import Path

import pytest

NEEDS_OPERATOR = """
import torch
if not hasattr(torch.ops.torchvision, "nms"):
    raise RuntimeError("operator torchvision::nms does not exist")
print("loaded")
"""


def _imported(code: str, path: Path) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(path)!r}); import fedraa; {code}"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)


def test_a_model_of_torchvision_can_be_imported_and_used(tmp_path: Path) -> None:
    used = "import torch; print(resnet18().eval()(torch.zeros(1, 3, 32, 32)).shape)"
    done = _imported(f"from torchvision.models import resnet18; {used}", tmp_path)
    assert "torch.Size([1, 1000])" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (NEEDS_OPERATOR, "loaded"),
        ("print('once'); raise RuntimeError('broken otherwise')", "RuntimeError: broken otherwise"),
    ],
)
def test_torchvision_import_is_retried_only_for_missing_operators(text: str, told: str, tmp_path: Path) -> None:
    """Make two replacements of torchvision: one needs a missing operator, and one fails for another reason."""
    package = tmp_path / "torchvision"
    package.mkdir()
    (package / "__init__.py").write_text(text)
    done = _imported("import torchvision", tmp_path)
    assert told in done.stdout + done.stderr
    assert done.stdout.count("once") == text.count("once")
