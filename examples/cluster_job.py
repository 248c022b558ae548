"""A run as a job of a cluster. After a kill, a time limit or a reboot, a new start of the job resumes the run.

python examples/cluster_job.py                                  # on the cores of this machine
RAY_ADDRESS=HEAD:6379 python examples/cluster_job.py            # on a cluster, from one of its nodes
ray job submit --working-dir examples -- python cluster_job.py --out /shared/runs/job    # from another machine
"""

import argparse
from pathlib import Path

import fedraa as fl


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    flags.add_argument(
        "--out", type=Path, default=Path("runs/job"), help="the run directory, which the next job resumes"
    )
    flags.add_argument("--updates", type=int, default=400)
    flags.add_argument("--engine", default="ray")
    options = flags.parse_args()
    experiment = fl.Experiment(
        method="fed-raa",
        clients=40,
        compute="lognormal:0.5",
        updates=options.updates,
        engine=options.engine,
        # Workers wait until some node of the cluster has free cores.
        workers={"ray": 2}.get(options.engine),
        checkpoint_every=50,
        out=options.out,
    )
    if (options.out / "summary.json").exists():
        history = fl.History(options.out)
    elif options.out.exists():
        history = fl.resume(options.out)
    else:
        history = fl.run(experiment)
    print(f"{history.directory}: {history.state}, accuracy {history.evals['accuracy'].iloc[-1]:.1%}")
    # The digest of the model is the same on any machines and after any interruptions.
    print(f"model {history.summary['model_sha256']}")


if __name__ == "__main__":
    main()
