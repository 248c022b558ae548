"""Low-rank adapters compared with full fine-tuning: a small GPT, pretrained on news, learns the roles of a play.

python examples/lora.py --news agnews/train.csv.gz --text shakespeare.txt    # without files: synthetic texts
"""

import argparse
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from character_models import GPT, SYNTHETIC_PLAY, cut_windows
from next_character import longest_roles

import fedraa as fl

SYNTHETIC_NEWS = ["Stocks fell again. Oil prices are up.", "The team won. Its captain was hurt."] * 200


def pretrain_model(model: GPT, x: np.ndarray, y: np.ndarray, steps: int) -> GPT:
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for batch in torch.randint(len(x), (steps, 64)):
        optimizer.zero_grad()
        scores = model(torch.from_numpy(x[batch]))
        torch.nn.functional.cross_entropy(scores.mT, torch.from_numpy(y[batch])).backward()
        optimizer.step()
    return model


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    sizes = {"roles": 6, "rank": 8, "steps": 1000, "rounds": 8, "width": 96}
    for name, default in (sizes | {"news": None, "text": None}).items():
        flags.add_argument(f"--{name}", type=type(default or Path()), default=default)
    options = flags.parse_args()
    news = "\n".join(pd.read_csv(options.news)["text"] if options.news else SYNTHETIC_NEWS)[:2_000_000]
    text_of_role = longest_roles(options.text.read_text() if options.text else SYNTHETIC_PLAY, options.roles)
    letters = sorted(set(news + "".join(text_of_role.values())))
    train, test = {}, {}
    for role, text in text_of_role.items():
        x, y = cut_windows(text, letters)
        test[role] = (x[::10], y[::10])
        train[role] = tuple(np.delete(part, np.s_[::10], axis=0) for part in (x, y))
    data = fl.FederatedDataset.of_clients("play", train, test_of_clients=test, classes=len(letters))
    torch.manual_seed(0)
    base = pretrain_model(GPT(len(letters), options.width), *cut_windows(news, letters), options.steps)
    adapted, merged = (fl.lora(base, options.rank, merge=merge) for merge in (False, True))
    settings = {"objective": "next-token", "rounds": options.rounds, "local_epochs": 1, "lr": 0.5, "clip": 1.0}
    runs = [(base, "fedavg", "full"), (adapted, "fedavg", "full"), (adapted, "fedavg", "rolling")]
    print(f"{'trained':8}{'method':9}{'submodels':11}{'bytes per update':>18}{'perplexity':>18}")
    for model, method, submodel in (*runs, (adapted, "hetlora", "prefix"), (merged, "flora", "prefix")):
        history = fl.run(method=method, submodel=submodel, model=model, dataset=data, engine="local", **settings)
        trained = "full" if model is base else "LoRA"
        sent_bytes, (first, last) = history.events["bytes_up"].mean(), history.evals["perplexity"].iloc[[0, -1]]
        print(f"{trained:8}{method:9}{submodel:11}{sent_bytes:18.0f}{first:10.2f} -> {last:.2f}")


if __name__ == "__main__":
    main()
