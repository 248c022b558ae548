"""A table of Hugging Face's `datasets`: reviews, one client per author, as a column says; Fed-RAA against FedAvg.

python examples/hugging_face.py, after pip install 'datasets>=3'; what joins Fed-RAA's fragments begins as 0
"""

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory
from zlib import crc32

import datasets
import numpy as np
import torch
from torch import nn

import fedraa as fl

WORDS, LENGTH = 256, 8
GOOD, BAD = ["good", "fine", "lovely", "quick"], ["bad", "stale", "rude", "slow"]
PLAIN = ["the", "food", "place", "was", "very", "at", "we", "went", "there", "staff"]


def reviews(count: int, authors: int, seed: int) -> datasets.Dataset:
    """Some authors like more than others do, and one word in four of those that matter is a slip."""
    rng = np.random.default_rng(seed)
    author, likes = rng.integers(authors, size=count), rng.random(count)
    label = (likes < (author + 1) / (authors + 1)).astype(int)
    said = [[rng.choice((BAD, GOOD)[word]) for word in (rng.random(3) < 0.25) ^ good] for good in label]
    text = [" ".join([*rng.choice(PLAIN, 5), *words]) for words in said]
    return datasets.Dataset.from_dict({"text": text, "author": [f"author {n}" for n in author], "liked": label})


def tokens(row: dict[str, str]) -> dict[str, list[int]]:
    return {"tokens": [crc32(word.encode()) % WORDS for word in row["text"].split()]}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--reviews", type=int, default=2000)
    flags.add_argument("--authors", type=int, default=8)
    flags.add_argument("--time", type=float, default=5.0)
    given = flags.parse_args()
    datasets.disable_progress_bars()
    splits = {"train": reviews(given.reviews, given.authors, 0), "test": reviews(given.reviews // 4, given.authors, 1)}
    with TemporaryDirectory() as folder:
        path = Path(folder, "reviews")
        datasets.DatasetDict(splits).map(tokens).save_to_disk(path)  # from where clients' rows are read
        for method in ("fed-raa", "fedavg"):
            torch.manual_seed(0)
            layers = nn.Embedding(WORDS, 8), nn.Flatten(), nn.Linear(8 * LENGTH, 32), nn.ReLU(), nn.Linear(32, 2)
            table = f"hf({str(path)!r}, input='tokens', target='liked', client='author')"
            own = {"method": method, "dataset": table, "clients": given.authors, "time": given.time}
            experiment = fl.Experiment(lr=0.05, local_epochs=1, engine="local", **own)
            evals = fl.run(experiment, model=nn.Sequential(*layers)).evals
            print(f"{method}: accuracy {evals['accuracy'].iloc[0]:.1%} -> {evals['accuracy'].iloc[-1]:.1%}")


if __name__ == "__main__":
    main()
