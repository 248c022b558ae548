"""A small GPT that has read the news learns the roles of a play: low-rank adapters against full fine-tuning.

    python examples/lora.py --news agnews/train.csv.gz --text shakespeare.txt

Without texts it makes them up.
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from next_character import GPT, ByRole, play, roles, windows
from torch.nn.functional import cross_entropy

import fedraa as fl


def read(path: Path | None) -> str:
    made = ["Stocks fell again. Oil prices are up.", "The team won. Its captain was hurt."] * 200
    return "\n".join(made if path is None else pd.read_csv(path)["text"])[:2_000_000]


def taught(model: GPT, rows: np.ndarray, steps: int) -> GPT:
    """The base: it has read the news, in one place."""
    optimizer, tokens = torch.optim.AdamW(model.parameters(), 3e-3), torch.from_numpy(rows.copy())
    for batch in torch.randint(len(tokens), (steps, 64)):
        optimizer.zero_grad()
        cross_entropy(model(tokens[batch, :-1]).flatten(0, 1), tokens[batch, 1:].flatten()).backward()
        optimizer.step()
    return model


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    for name, default in {"roles": 6, "rank": 8, "steps": 1000, "rounds": 8, "width": 96}.items():
        flags.add_argument(f"--{name}", type=int, default=default)
    flags.add_argument("--news", type=Path)
    flags.add_argument("--text", type=Path)
    given = flags.parse_args()
    news, spoken = read(given.news), roles(play(given.text), given.roles)
    codes = {letter: code for code, letter in enumerate(sorted(set(news + "".join(spoken))))}
    shards = [windows(text, codes) for text in spoken]
    train = [np.delete(each, np.s_[::10], axis=0) for each in shards]
    rows, unseen = np.concatenate(train), np.concatenate([each[::10] for each in shards])
    data = fl.Dataset("play", rows[:, :-1], rows[:, 1:], unseen[:, :-1], unseen[:, 1:], len(codes))
    torch.manual_seed(0)
    base = taught(GPT(len(codes), given.width), windows(news, codes), given.steps)
    how = {"objective": "next-token", "clients": len(train), "partition": ByRole(tuple(map(len, train)))}
    how |= {"rounds": given.rounds, "local_epochs": 1, "lr": 0.5, "clip": 1.0, "engine": "local"}
    print(f"{'fine-tuning':24}{'bytes per update':>18}{'perplexity':>18}")
    for name in ("full, fedavg", "LoRA, fedavg", "LoRA, fedrolex's slices", "LoRA, hetlora", "LoRA, flora"):
        method = {"hetlora": "hetlora", "flora": "flora"}.get(name[6:], "fedavg")
        slices = {"submodel": "rolling"} if "slices" in name else {}
        model = base if name.startswith("full") else fl.lora(base, given.rank, merge=method == "flora")
        history = fl.run(fl.Experiment(method=method, **how, **slices), model=model, dataset=data)
        first, last = history.evals["perplexity"].iloc[[0, -1]]
        print(f"{name:24}{history.events['bytes_up'].mean():18.0f}{first:10.2f} -> {last:.2f}", flush=True)


if __name__ == "__main__":
    main()
