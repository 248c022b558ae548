"""A custom scheduler, which chooses the next fragment of an idle device, compared with Gre-RAA.

python examples/own_scheduler.py
cd examples && fedraa check own_scheduler:Oldest
"""

import fedraa as fl


class Oldest(fl.Scheduler):
    """The choice of the feasible fragment that was assigned the longest time ago.

    Checkpoints save the attributes, and a resumed run restores them.
    """

    def __init__(self) -> None:
        self.assigned_at: list[float] = []

    def choose(self, view, rng):
        self.assigned_at = self.assigned_at or [-1.0] * len(view.counts)
        chosen = min(view.feasible, key=self.assigned_at.__getitem__)
        self.assigned_at[chosen] = view.now
        return int(chosen)


def main() -> None:
    for name, scheduler in (("gre-raa", "gre-raa"), ("custom", Oldest())):
        history = fl.run(method="fed-raa", scheduler=scheduler, clients=8, time=1.0, engine="local")
        commits = history.events.query("kind == 'commit'")
        trained = commits["fragment"].value_counts().sort_index().to_dict()
        print(f"{name}: accuracy {history.evals['accuracy'].iloc[-1]:.1%}; updates by fragment {trained}")
        print(f"  {fl.replay(history.directory)}")


if __name__ == "__main__":
    main()
