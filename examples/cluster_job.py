"""A run as a job of a cluster: started again after a kill, a time limit or a reboot, it goes on where it was.

python examples/cluster_job.py                                  # on the cores of this machine
RAY_ADDRESS=HEAD:6379 python examples/cluster_job.py            # on a cluster, from one of its nodes
ray job submit --working-dir examples -- python cluster_job.py --out /shared/runs/job    # from elsewhere
"""

import argparse
from pathlib import Path

import fedraa as fl


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument("--out", type=Path, default=Path("runs/job"), help="where the next job finds it again")
    flags.add_argument("--updates", type=int, default=400)
    flags.add_argument("--engine", default="ray")
    given = flags.parse_args()
    experiment = fl.Experiment(
        method="fed-raa",
        clients=40,
        compute="lognormal:0.5",
        updates=given.updates,
        engine=given.engine,
        workers=2 if given.engine == "ray" else None,  # they wait for cores, wherever the cluster has some
        checkpoint_every=50,
        out=given.out,
    )
    if (given.out / "summary.json").exists():
        history = fl.History(given.out)
    elif given.out.exists():
        history = fl.resume(given.out)
    else:
        history = fl.run(experiment)
    print(f"{history.directory}: {history.state}, accuracy {history.evals['accuracy'].iloc[-1]:.1%}")
    print(f"model {history.summary['model_sha256']}")  # the same wherever it ran, and however often it was stopped


if __name__ == "__main__":
    main()
