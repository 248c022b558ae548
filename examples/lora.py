"""A small GPT that has read the news learns the roles of a play: low-rank adapters against full fine-tuning.

python examples/lora.py --news agnews/train.csv.gz --text shakespeare.txt  # without them it makes texts up
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from next_character import GPT, ByRole, play, roles, windows

import fedraa as fl


def read(path: Path | None) -> str:
    made = ["Stocks fell again. Oil prices are up.", "The team won. Its captain was hurt."] * 200
    return "\n".join(made if path is None else pd.read_csv(path)["text"])[:2_000_000]


def taught(model: GPT, rows: np.ndarray, steps: int) -> GPT:
    optimizer, tokens = torch.optim.AdamW(model.parameters(), 3e-3), torch.from_numpy(rows.copy())
    for batch in torch.randint(len(tokens), (steps, 64)):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens[batch, :-1]).mT, tokens[batch, 1:]).backward()
        optimizer.step()
    return model


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    sizes = {"roles": 6, "rank": 8, "steps": 1000, "rounds": 8, "width": 96}
    for name, default in (sizes | {"news": None, "text": None}).items():
        flags.add_argument(f"--{name}", type=Path if default is None else int, default=default)
    given = flags.parse_args()
    news, spoken = read(given.news), roles(play(given.text), given.roles)
    codes = {letter: code for code, letter in enumerate(sorted(set(news + "".join(spoken))))}
    shards = [windows(text, codes) for text in spoken]
    train = [np.delete(each, np.s_[::10], axis=0) for each in shards]
    rows, unseen = np.concatenate(train), np.concatenate([each[::10] for each in shards])
    data = fl.Dataset("play", rows[:, :-1], rows[:, 1:], unseen[:, :-1], unseen[:, 1:], len(codes))
    torch.manual_seed(0)
    base = taught(GPT(len(codes), given.width), windows(news, codes), given.steps)
    adapted, roomy = (fl.lora(base, given.rank, merge=merge) for merge in (False, True))
    how = {"objective": "next-token", "clients": len(train), "partition": ByRole(tuple(map(len, train)))}
    how |= {"rounds": given.rounds, "local_epochs": 1, "lr": 0.5, "clip": 1.0, "engine": "local"}
    runs = [(base, "fedavg", "full"), (adapted, "fedavg", "full"), (adapted, "fedavg", "rolling")]
    print(f"{'trained':8}{'method':9}{'submodels':11}{'bytes per update':>18}{'perplexity':>18}")
    for model, method, submodel in (*runs, (adapted, "hetlora", "prefix"), (roomy, "flora", "prefix")):
        history = fl.run(fl.Experiment(method=method, submodel=submodel, **how), model=model, dataset=data)
        back, (first, last) = history.events["bytes_up"].mean(), history.evals["perplexity"].iloc[[0, -1]]
        print(f"{'full' if model is base else 'LoRA':8}{method:9}{submodel:11}{back:18.0f}{first:10.2f} -> {last:.2f}")


if __name__ == "__main__":
    main()
