"""The model of `History.load_model` takes raw inputs of users: in a new process it has the run's accuracy."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from refusals import refuses
from torch import Tensor, nn

import fedraa as fl

RNG = np.random.default_rng(0)
CLASSES, SIDE = 3, 6
# The images have a bright square on noise, whose place is the class. Mean and spread of the bytes are far from 0 and 1.
Y = np.arange(240) % CLASSES
IMAGES = RNG.integers(60, 140, (240, 3, SIDE, SIDE)).astype(np.uint8)
for row, label in enumerate(Y):
    IMAGES[row, :, 2 * label : 2 * label + 2, :3] += 12
TRAIN, TEST = slice(180), slice(180, 240)
FLAGS: dict[str, Any] = {"engine": "local", "quiet": True, "updates": 24, "clients": 3, "hidden": (16,), "fragments": 2}

EVALUATE = """
import sys
import numpy as np
import torch
import fedraa as fl
directory, arrays = sys.argv[1:3]
options = eval(sys.argv[3]) if len(sys.argv) > 3 else {}
held = np.load(arrays)
inputs = {name[2:]: torch.from_numpy(held[name]) for name in held.files if name.startswith("x_")}
net = fl.History(directory).load_model(**options)
with torch.no_grad():
    outputs = net(**inputs) if len(inputs) > 1 else net(*inputs.values())
print(repr(float((outputs.argmax(1).numpy() == held["y"]).mean())))
"""


def accuracy_in_new_process(history: fl.History, y: Any, *, options: str = "", here: str = "", **x: Any) -> float:
    arrays = history.directory / "raw.npz"
    np.savez(arrays, y=y, **{f"x_{name}": value for name, value in x.items()})
    words = [sys.executable, "-c", EVALUATE, str(history.directory), str(arrays), *([options] if options else [])]
    # The new process imports this module, which imports helpers of the tests.
    path = f"{here}:{Path(fl.__file__).parents[1]}:{Path(__file__).parents[1]}"
    done = subprocess.run(words, capture_output=True, text=True, env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


def reported_accuracy(history: fl.History) -> float:
    return float(history.evals["accuracy"].iloc[-1])


class Pairs(torch.utils.data.Dataset[Any]):
    def __init__(self, rows: slice) -> None:
        self.x, self.y = IMAGES[rows], Y[rows]

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, row: int) -> Any:
        return torch.from_numpy(self.x[row]), int(self.y[row])


class Table(Pairs):
    """A table in the form of Hugging Face."""

    column_names = ("image", "label")
    features: tuple[str, ...] = ()

    def __getitem__(self, what: Any) -> Any:
        if isinstance(what, str):
            return self.y.tolist()
        return {"image": [self.x[row].tolist() for row in what], "label": [int(self.y[row]) for row in what]}


def in_npz(folder: Path) -> str:
    np.savez(folder / "mine.npz", x_train=IMAGES[TRAIN], y_train=Y[TRAIN], x_test=IMAGES[TEST], y_test=Y[TEST])
    return str(folder / "mine.npz")


def in_folder(folder: Path) -> str:
    from PIL import Image

    for split, rows in (("train", TRAIN), ("test", TEST)):
        for number, (image, label) in enumerate(zip(IMAGES[rows], Y[rows], strict=True)):
            place = folder / "images" / split / f"class{label}"
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.transpose(1, 2, 0)).save(place / f"{number:03}.png")
    return f"folder:{folder / 'images'}"


def test_data_sources_give_the_same_run_and_a_model_for_raw_inputs(tmp_path: Path) -> None:
    x_test, y_test = IMAGES[TEST], Y[TEST]
    ways: dict[str, Any] = {
        "arrays": fl.Dataset("mine", IMAGES[TRAIN], Y[TRAIN], x_test, y_test, CLASSES),
        "npz": in_npz(tmp_path),
        "torch": fl.FederatedDataset("mine", Pairs(TRAIN), Pairs(TEST)),
        "table": fl.FederatedDataset("mine", Table(TRAIN), Table(TEST)),
    }
    runs = {name: fl.run(dataset=data, out=tmp_path / name, **FLAGS) for name, data in ways.items()}
    assert len({run.summary["model_sha256"] for run in runs.values()}) == 1
    assert 0.6 < reported_accuracy(runs["arrays"]) < 1
    assert accuracy_in_new_process(runs["torch"], y_test, images=x_test) == reported_accuracy(runs["torch"])
    scalings = [run.config["resolved"]["inputs"]["scaling"] for run in runs.values()]
    assert all(scaling == scalings[0] for scaling in scalings)
    train = IMAGES[TRAIN].astype(np.float64)
    np.testing.assert_allclose(scalings[0]["mean"], train.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(scalings[0]["std"], train.std((0, 2, 3)), rtol=1e-6)

    name = in_folder(tmp_path)
    folder = fl.run(dataset=name, out=tmp_path / "folder", **FLAGS)
    x, y = fl.load_dataset(name).test.read(np.arange(60))  # type: ignore[union-attr]
    assert (x.min() >= 0) & (x.max() <= 1)
    assert accuracy_in_new_process(folder, y, images=x) == reported_accuracy(folder)
    scaling = folder.config["resolved"]["inputs"]["scaling"]
    np.testing.assert_allclose(np.array(scaling["mean"]) * 255, scalings[0]["mean"], rtol=1e-6)
    np.testing.assert_allclose(np.array(scaling["std"]) * 255, scalings[0]["std"], rtol=1e-6)


def test_image_folder_has_the_accuracy_of_arrays_in_the_same_order(tmp_path: Path) -> None:
    """Files and arrays have the order of their classes. Only the scale of the pixels differs."""
    train, test = (np.argsort(Y[rows], kind="stable") + rows.start for rows in (slice(0, 180), TEST))
    given = fl.Dataset("mine", IMAGES[train], Y[train], IMAGES[test], Y[test], CLASSES)
    arrays = fl.run(dataset=given, out=tmp_path / "arrays", **FLAGS)
    folder = fl.run(dataset=in_folder(tmp_path), out=tmp_path / "folder", **FLAGS)
    assert reported_accuracy(folder) == pytest.approx(reported_accuracy(arrays), abs=0.02)
    assert folder.evals["loss"].iloc[-1] == pytest.approx(arrays.evals["loss"].iloc[-1], rel=1e-3)


def test_model_of_a_csv_table_takes_raw_features(tmp_path: Path) -> None:
    price, stock = RNG.normal(5000, 300, 300), RNG.normal(0, 0.01, 300)
    label = ((price - 5000) / 300 + stock / 0.01 > 0).astype(int)
    noise = RNG.integers(0, 2, 300)
    rows = [f"{a},{b},{'xy'[c ^ d]},{c}" for a, b, c, d in zip(price, stock, label, noise, strict=True)]
    path = tmp_path / "sales.csv"
    path.write_text("\n".join(["price,stock,kind,label", *rows]))
    history = fl.run(dataset=path, out=tmp_path / "run", **FLAGS)
    x, y = fl.load_dataset(str(path)).test  # type: ignore[union-attr]
    assert x[:, 0].mean() > 4000
    assert reported_accuracy(history) > 0.6
    assert accuracy_in_new_process(history, y, features=x) == reported_accuracy(history)


class Net(nn.Module):
    """A network with two inputs, batch norm, dropout and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last, self.drop = nn.BatchNorm1d(8), nn.Linear(12, CLASSES), nn.Dropout(0.2)
        self.embed = nn.Embedding(9, 4)

    def forward(self, numbers: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        words = (self.embed(ids) * mask[..., None]).sum(1)
        return self.last(self.drop(torch.cat([self.norm(numbers), words], 1)))


def test_model_object_with_several_inputs_is_loaded_for_raw_inputs(tmp_path: Path) -> None:
    numbers = RNG.normal(50, 9, (240, 8)).astype(np.float32)
    numbers[np.arange(240), Y] += 12
    x = {
        "numbers": numbers,
        "ids": RNG.integers(0, 9, (240, 5)),
        "mask": RNG.integers(0, 2, (240, 5)).astype(np.float32),
    }
    train, test = ({name: value[rows] for name, value in x.items()} for rows in (TRAIN, TEST))
    data = fl.Dataset("mine", train, Y[TRAIN], test, Y[TEST], CLASSES)
    flags = {name: value for name, value in FLAGS.items() if name not in ("hidden", "updates", "fragments")}
    torch.manual_seed(0)
    net = Net()
    history = fl.run(dataset=data, model=net, method="fedavg", rounds=8, out=tmp_path / "run", **flags)
    assert reported_accuracy(history) > 0.6
    (tmp_path / "nets.py").write_text(Path(__file__).read_text())
    options = "{'model': __import__('nets').Net()}"
    assert accuracy_in_new_process(history, Y[TEST], options=options, here=str(tmp_path), **test) == reported_accuracy(
        history
    )
    before = {name: value.clone() for name, value in net.state_dict().items()}
    loaded = history.load_model(net)
    assert not loaded.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    for wrapped in (torch.compile(net), nn.DataParallel(net)):
        unwrapped = history.load_model(wrapped)
        assert all(
            torch.equal(value, other)
            for value, other in zip(loaded.state_dict().values(), unwrapped.state_dict().values(), strict=True)
        )
    for given, said in (
        (None, "^model: "),
        (nn.Linear(3, 3), "^model: .*Linear"),
    ):
        with pytest.raises(ValueError, match=said):
            history.load_model(given)


def test_imported_model_needs_trust_and_applies_fixed_transforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nets_of_mine.py").write_text(
        "from torch import nn\n"
        "def small(classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(48, 16), nn.ReLU(), nn.Linear(16, classes))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    data = fl.Dataset("mine", IMAGES[TRAIN], Y[TRAIN], IMAGES[TEST], Y[TEST], CLASSES)
    flags = {name: value for name, value in FLAGS.items() if name != "hidden"}
    history = fl.run(
        dataset=data,
        model="nets_of_mine:small",
        transforms=("v2.CenterCrop(4)", "normalize", "flip"),
        polyak_fraction=0.5,
        out=tmp_path / "run",
        **flags,
    )
    with pytest.raises(ValueError, match=r"^run: .*nets_of_mine:small.*trust=True"):
        history.load_model()
    found = accuracy_in_new_process(
        history, Y[TEST], options="{'trust': True}", here=str(tmp_path), images=IMAGES[TEST]
    )
    assert found == reported_accuracy(history)
    monkeypatch.undo()


def test_load_model_refuses_missing_transforms_and_damaged_files(tmp_path: Path) -> None:
    def load() -> fl.Dataset:
        return fl.Dataset("mine", IMAGES[TRAIN], Y[TRAIN], IMAGES[TEST], Y[TEST], CLASSES)

    class Shift(fl.Transform):
        random = False

        def fitted(self, x: Tensor) -> "Shift":
            made = Shift()
            made.by = float(x.mean()) + 1
            return made

        def apply(self, x: Tensor, rng: Any) -> Tensor:
            return x + getattr(self, "by", 0.0)

    history = fl.run(dataset=load(), transforms=(Shift(),), out=tmp_path / "run", **FLAGS)
    with pytest.raises(ValueError, match=r"^transforms: .*Shift.*load_model\(transforms="):
        history.load_model()
    with pytest.raises(ValueError, match=r"^transforms: .*Shift"):
        history.load_model(transforms=[Shift()])
    with pytest.raises(ValueError, match=r"^transforms: .*1"):
        history.load_model(transforms=[])
    (tmp_path / "run" / "model.pt").write_bytes(b"damaged")
    with pytest.raises(ValueError, match=r"model\.pt"):
        history.load_model(transforms=[Shift()])
    (tmp_path / "run" / "model.pt").unlink()
    with pytest.raises(ValueError, match=r"^run: "):
        history.load_model()


def test_run_resumes_only_with_the_same_scaling(tmp_path: Path) -> None:
    def data(shift: int) -> fl.Dataset:
        return fl.Dataset("mine", IMAGES[TRAIN] // 2 + shift, Y[TRAIN], IMAGES[TEST] // 2, Y[TEST], CLASSES)

    fl.run(dataset=data(0), out=tmp_path / "run", **FLAGS)
    with refuses("run", "inputs", got=tmp_path / "run"):
        fl.resume(tmp_path / "run", dataset=data(1), updates=30)
    longer = fl.resume(tmp_path / "run", dataset=data(0), updates=30)
    whole = fl.run(dataset=data(0), out=tmp_path / "whole", **FLAGS | {"updates": 30})
    assert longer.summary["model_sha256"] == whole.summary["model_sha256"]
    assert "consistent" in fl.replay(tmp_path / "run")


def test_loaded_model_does_not_scale_inputs_without_standardising(tmp_path: Path) -> None:
    x = (IMAGES / 255).astype(np.float32)
    data = fl.Dataset("mine", x[TRAIN], Y[TRAIN], x[TEST], Y[TEST], CLASSES)
    history = fl.run(dataset=data, standardise=False, out=tmp_path / "run", **FLAGS)
    net = history.load_model()
    torch.testing.assert_close(net(torch.from_numpy(x[TEST])), net.model(torch.from_numpy(x[TEST])))


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated:FutureWarning")
def test_load_model_copies_a_model_with_computed_weights(tmp_path: Path) -> None:
    """After a training step, a hook of the layer has left a weight in it that `deepcopy` cannot copy."""
    layer = nn.utils.weight_norm(nn.Linear(64, 10))
    net = nn.Sequential(nn.Flatten(), layer)
    net(torch.ones(2, 64)).sum().backward()
    history = fl.run(method="fedavg", rounds=2, clients=3, model=net, engine="local", quiet=True, out=tmp_path / "run")
    digits = fl.load_dataset("digits")
    predicted = history.load_model(net)(torch.from_numpy(digits.x_test)).argmax(1).numpy()
    assert (predicted == digits.y_test).mean() == pytest.approx(reported_accuracy(history))
    untrained = net(torch.ones(2, 64))
    assert not torch.equal(history.load_model(net)(torch.ones(2, 1, 8, 8)), untrained)
