"""Fed-RAA with a custom nn.Module. fedraa finds out how to cut it into fragments. The data are handwritten digits.

python examples/own_model.py
"""

import torch
from torch import Tensor, nn

import fedraa as fl


class Net(nn.Module):
    """A network of two hidden layers. A shortcut adds their outputs, so both layers are cut along the same units."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(64, 96)
        self.second = nn.Linear(96, 96)
        self.last = nn.Linear(96, 10)
        self.norm = nn.BatchNorm1d(96)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x.flatten(1)))
        return self.last(h + torch.relu(self.norm(self.second(h))))


def main() -> None:
    torch.manual_seed(0)
    model = Net()
    history = fl.run(method="fed-raa", model=model, dataset="digits", clients=8, updates=80, engine="local")
    # The list has the cost of each fragment, and then the cost of the whole model.
    *fragments, whole = history.config["resolved"]["shapes"]
    for fragment, shape in enumerate(fragments):
        share = shape["flops"] / whole["flops"]
        print(f"fragment {fragment}: {shape['widths']} of {whole['widths']} units, {share:.0%} of the computing")
    digits = fl.load_dataset("digits")
    # The trained model takes images as the data set has them.
    trained = history.load_model(model)
    right = trained(torch.from_numpy(digits.x_test)).argmax(1) == torch.from_numpy(digits.y_test)
    print(f"the trained model is right about {right.sum()} of {len(right)} images")
    print(f"accuracy {history.evals['accuracy'].iloc[-1]:.1%} after {history.evals['t'].iloc[-1]:.2f} units of time")


if __name__ == "__main__":
    main()
