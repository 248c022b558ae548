"""The next character of a play, one client per role: a small GPT and an LSTM, Fed-RAA against FedAvg.

python examples/next_character.py --text shakespeare.txt, of speeches: `ROLE:`, lines, an empty line; or it makes some
"""

import argparse
from collections import defaultdict
from pathlib import Path

import torch
from character_models import GPT, LSTM, say, windows

import fedraa as fl

SAYS = ("to be or not to be", "the rest is silence", "what a piece of work is man")
MADE_UP = "\n\n".join(f"{role}:\n{line}." for role in ("HAMLET", "HORATIO", "OPHELIA") for line in SAYS * 30)


def speeches(text: str, most: int) -> dict[str, str]:
    """Return the text of each of the `most` roles with the most text."""
    said: dict[str, str] = defaultdict(str)
    for speech in text.split("\n\n"):
        role, _, words = speech.partition(":\n")
        said[role] += words + "\n"
    return {role: said[role] for role in sorted(said, key=lambda role: len(said[role]))[-most:]}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--text", type=Path)
    flags.add_argument("--roles", type=int, default=8)
    flags.add_argument("--time", type=float, default=2.0)
    given = flags.parse_args()
    said = speeches(given.text.read_text() if given.text else MADE_UP, given.roles)
    letters = sorted(set("".join(said.values())))
    train, test = {}, {}
    for role, text in said.items():
        rows = windows(text, letters)
        part = -(-len(rows) // 10)  # of the role, unseen in training
        test[role], train[role] = ((some[:, :-1], some[:, 1:]) for some in (rows[:part], rows[part:]))
    data = fl.FederatedDataset.of_clients("play", train, None, test_of_clients=test, classes=len(letters))
    own = {"objective": "next-token", "local_epochs": 1, "lr": 0.5, "momentum": 0.9, "clip": 1.0, "engine": "local"}
    # Each half learns all of it. Together they are the mean.
    halves = {"fragments": 2, "override": {"local.scale_activations": True}}
    for kind in (GPT, LSTM):
        for method, more in (("fed-raa", halves), ("fedavg", {})):
            torch.manual_seed(0)
            model = kind(len(letters))
            history = fl.run(method=method, model=model, dataset=data, time=given.time, **own, **more)
            first, last = history.evals["perplexity"].iloc[[0, -1]]
            print(f"{kind.__name__}, {method}: perplexity {first:.1f} -> {last:.2f}")
            trained = history.load_model(model)
            print(f"  {''.join(letters[code] for code in say(trained, [0]))!r}")


if __name__ == "__main__":
    main()
