"""Files in the form of LEAF, and the division of their samples."""

import json

from fedraa.data import DivisionSettings, divide_dataset, make_partitioner


def write_leaf(folder, name, train, test, **more):
    """Write files in the form of LEAF: `train` and `test` are lists of {user: (x, y)}, one for each file."""
    root = folder / "data" / name / "data"
    for split, files in (("train", train), ("test", test)):
        (root / split).mkdir(parents=True)
        for number, users in enumerate(files):
            data = {
                "users": list(users),
                "num_samples": [len(y) for _, y in users.values()],
                "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
                **more,
            }
            (root / split / f"all_data_{number}_niid_05_keep_0_{split}_9.json").write_text(json.dumps(data))
    return root


def deal(data, clients, **how):
    return divide_dataset(data, DivisionSettings(make_partitioner("natural"), clients, 0, **how))
