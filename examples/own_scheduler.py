"""A scheduler of your own, which says what an idle device trains next, beside Gre-RAA's choice.

python examples/own_scheduler.py; and in this folder: fedraa check own_scheduler:Oldest
"""

import fedraa as fl


class Oldest(fl.Scheduler):
    """Of the fragments that the device can train in time, the one that was given out the longest ago.

    What it keeps in its attributes is saved with checkpoints, and comes back on resume.
    """

    def __init__(self) -> None:
        self.given_out: list[float] = []

    def choose(self, view, rng):
        self.given_out = self.given_out or [-1.0] * len(view.counts)
        chosen = min(view.feasible, key=self.given_out.__getitem__)
        self.given_out[chosen] = view.now
        return int(chosen)


def main() -> None:
    for name, scheduler in (("gre-raa", "gre-raa"), ("ours", Oldest())):
        history = fl.run(method="fed-raa", scheduler=scheduler, clients=8, time=1.0, engine="local")
        commits = history.events.query("kind == 'commit'")
        trained = commits["fragment"].value_counts().sort_index().to_dict()
        print(f"{name}: accuracy {history.evals['accuracy'].iloc[-1]:.1%}; updates by fragment {trained}")
        print(f"  {fl.replay(history.directory)}")


if __name__ == "__main__":
    main()
