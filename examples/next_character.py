"""Fed-RAA and FedAvg train a small GPT and an LSTM to predict the next character of a play. Each role is a client.

A speech in the text file is a line `ROLE:`, the lines of the speech, and an empty line.

python examples/next_character.py --text shakespeare.txt    # without a file: a synthetic play
"""

import argparse
from collections import defaultdict
from pathlib import Path

import torch
from character_models import GPT, LSTM, SYNTHETIC_PLAY, cut_windows, generate_tokens

import fedraa as fl


def longest_roles(text: str, count: int) -> dict[str, str]:
    """Return the texts of the `count` roles with the longest texts."""
    text_of_role: dict[str, str] = defaultdict(str)
    for speech in text.split("\n\n"):
        role, _, words = speech.partition(":\n")
        text_of_role[role] += words + "\n"
    return dict(sorted(text_of_role.items(), key=lambda item: len(item[1]))[-count:])


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--text", type=Path)
    flags.add_argument("--roles", type=int, default=8)
    flags.add_argument("--time", type=float, default=2.0)
    options = flags.parse_args()
    text_of_role = longest_roles(options.text.read_text() if options.text else SYNTHETIC_PLAY, options.roles)
    letters = sorted(set("".join(text_of_role.values())))
    train, test = {}, {}
    for role, text in text_of_role.items():
        x, y = cut_windows(text, letters)
        test_count = -(-len(x) // 10)
        test[role] = (x[:test_count], y[:test_count])
        train[role] = (x[test_count:], y[test_count:])
    data = fl.FederatedDataset.of_clients("play", train, test_of_clients=test, classes=len(letters))
    settings = {"objective": "next-token", "local_epochs": 1, "lr": 0.5, "momentum": 0.9, "clip": 1.0}
    settings |= {"dataset": data, "time": options.time, "engine": "local"}
    # Each fragment learns the whole task. With this scaling, the full model computes the mean of its fragments' logits.
    halves = {"fragments": 2, "override": {"local.scale_activations": True}}
    for kind in (GPT, LSTM):
        for method, more in (("fed-raa", halves), ("fedavg", {})):
            torch.manual_seed(0)
            model = kind(len(letters))
            history = fl.run(method=method, model=model, **settings, **more)
            first, last = history.evals["perplexity"].iloc[[0, -1]]
            print(f"{kind.__name__}, {method}: perplexity {first:.1f} -> {last:.2f}")
            drawn = generate_tokens(history.load_model(model), [0])
            print(f"  {''.join(letters[code] for code in drawn)!r}")


if __name__ == "__main__":
    main()
