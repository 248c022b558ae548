"""A small GPT that has read the news learns the roles of a play: low-rank adapters against full fine-tuning.

python examples/lora.py --news agnews/train.csv.gz --text shakespeare.txt  # without them it makes texts up
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from character_models import GPT, windows
from next_character import MADE_UP, speeches

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
    news, said = read(given.news), speeches(given.text.read_text() if given.text else MADE_UP, given.roles)
    letters = sorted(set(news + "".join(said.values())))
    train, test = {}, {}
    for role, rows in ((role, windows(text, letters)) for role, text in said.items()):
        kept = np.delete(rows, np.s_[::10], axis=0)
        test[role], train[role] = ((some[:, :-1], some[:, 1:]) for some in (rows[::10], kept))
    data = fl.FederatedDataset.of_clients("play", train, None, test_of_clients=test, classes=len(letters))
    torch.manual_seed(0)
    base = taught(GPT(len(letters), given.width), windows(news, letters), given.steps)
    adapted, roomy = (fl.lora(base, given.rank, merge=merge) for merge in (False, True))
    how = {"objective": "next-token", "rounds": given.rounds, "local_epochs": 1, "lr": 0.5, "clip": 1.0}
    how["engine"] = "local"
    runs = [(base, "fedavg", "full"), (adapted, "fedavg", "full"), (adapted, "fedavg", "rolling")]
    print(f"{'trained':8}{'method':9}{'submodels':11}{'bytes per update':>18}{'perplexity':>18}")
    for model, method, submodel in (*runs, (adapted, "hetlora", "prefix"), (roomy, "flora", "prefix")):
        history = fl.run(fl.Experiment(method=method, submodel=submodel, **how), model=model, dataset=data)
        back, (first, last) = history.events["bytes_up"].mean(), history.evals["perplexity"].iloc[[0, -1]]
        print(f"{'full' if model is base else 'LoRA':8}{method:9}{submodel:11}{back:18.0f}{first:10.2f} -> {last:.2f}")


if __name__ == "__main__":
    main()
