"""Fed-RAA and FedAvg on a table of Hugging Face's `datasets`: reviews, with a column that names the client of each row.

python examples/hugging_face.py    # after `pip install 'datasets>=3'`
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


def make_reviews(count: int, authors: int, seed: int) -> datasets.Dataset:
    """Return synthetic reviews. Authors differ in their share of positive reviews; a quarter of the words are wrong."""
    rng = np.random.default_rng(seed)
    author = rng.integers(authors, size=count)
    label = (rng.random(count) < (author + 1) / (authors + 1)).astype(int)
    opinions = [[rng.choice((BAD, GOOD)[word]) for word in (rng.random(3) < 0.25) ^ good] for good in label]
    text = [" ".join([*rng.choice(PLAIN, 5), *words]) for words in opinions]
    return datasets.Dataset.from_dict({"text": text, "author": [f"author {n}" for n in author], "liked": label})


def hash_words(row: dict[str, str]) -> dict[str, list[int]]:
    return {"tokens": [crc32(word.encode()) % WORDS for word in row["text"].split()]}


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--reviews", type=int, default=2000)
    flags.add_argument("--authors", type=int, default=8)
    flags.add_argument("--time", type=float, default=5.0)
    options = flags.parse_args()
    datasets.disable_progress_bars()
    train = make_reviews(options.reviews, options.authors, 0)
    test = make_reviews(options.reviews // 4, options.authors, 1)
    with TemporaryDirectory() as folder:
        path = Path(folder, "reviews")
        datasets.DatasetDict(train=train, test=test).map(hash_words).save_to_disk(path)
        table = f"hf({str(path)!r}, input='tokens', target='liked', client='author')"
        fields = {"dataset": table, "clients": options.authors, "time": options.time, "lr": 0.05, "engine": "local"}
        for method in ("fed-raa", "fedavg"):
            torch.manual_seed(0)
            layers = nn.Embedding(WORDS, 8), nn.Flatten(), nn.Linear(8 * LENGTH, 32), nn.ReLU(), nn.Linear(32, 2)
            accuracy = fl.run(method=method, local_epochs=1, model=nn.Sequential(*layers), **fields).evals["accuracy"]
            print(f"{method}: accuracy {accuracy.iloc[0]:.1%} -> {accuracy.iloc[-1]:.1%}")


if __name__ == "__main__":
    main()
