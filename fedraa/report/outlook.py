"""One run compared with its plan: the predicted time, staleness and delay bound, and the actual ones."""

from fedraa.engine.forecast import Forecast, dry_run
from fedraa.ledger.dispatch import Dispatch
from fedraa.replay.rules import Rules
from fedraa.report.runs import Run
from fedraa.report.verdict import gains, uncovered
from fedraa.rundir.failures import describe_clients

# Limits of a run that is predicted by a dry run.
MOST_STEPS, MOST_CLIENTS = 20_000, 10_000
# A time within this share of the predicted one counts as equal.
CLOSE = 0.02


def outlook(run: Run) -> str:
    """Return a description of the run's result and its difference from the prediction."""
    notes = [_end(run), _time(run), _idle(run), _bound(run), _failed(run)]
    if gains(run):
        notes.append("It still got better at the end: a larger budget is worth a try.")
    return " ".join(note for note in notes if note)


def _end(run: Run) -> str:
    main = run.figures.main
    best, last = run.figures.best(run.evals[main]), float(run.evals[main].iloc[-1])
    said = f"{main.replace('_', ' ')} {last:.4f}" + ("" if best == last else f" (best {best:.4f})")
    steps, end, reason = run.summary["steps"], f"{run.end:.4g}", str(run.summary["reason"])
    if run.ended:
        return f"Ended by {reason} at time {end} after {steps} {_steps(run)}, with {said}."
    on = f" Go on with: fedraa resume {run.directory}." if reason == "interrupted" else ""
    return f"Not ended: {reason} at time {end} after {steps} {_steps(run)}, with {said}.{on}"


def _steps(run: Run) -> str:
    what = "round" if run.config["method"]["schedule"]["kind"] in ("Rounds", "ScheduledRounds") else "update"
    return what if run.summary["steps"] == 1 else what + "s"


def _time(run: Run) -> str:
    """Return a sentence about time and staleness against a dry run with the same costs, or else against task costs."""
    foretold = forecast(run)
    if foretold is None:
        done = run.tasks[run.tasks["done"]]
        if done.empty or not done["cost"].sum():
            return ""
        ratio = float((done["end"] - done["start"]).sum() / done["cost"].sum())
        told = "as long" if abs(ratio - 1) < CLOSE else f"{ratio:.3g} times as long"
        return f"Its tasks took {told} as their costs foretell."
    ratio = float(run.tasks.loc[run.tasks["done"], "end"].max()) / foretold.time
    as_told = "as long as foretold" if abs(ratio - 1) < CLOSE else f"{ratio:.2f} times the {foretold.time:.4g} foretold"
    stale = f"{run.summary['staleness_mean']:.2f} versions on average, at most {run.summary['staleness_max']}"
    told = f"{foretold.staleness_mean:.2f} and {foretold.staleness_max}"
    same = told == f"{run.summary['staleness_mean']:.2f} and {run.summary['staleness_max']}"
    return f"It took {as_told}; updates were late by {stale}{', as foretold' if same else f', foretold {told}'}."


def forecast(run: Run) -> Forecast | None:
    """Return a dry run with the same costs.

    Returns None if the costs do not determine the run: for rounds, sampled submodels and custom components.
    """
    steps = int(run.summary["steps"])
    schedule = run.config["method"]["schedule"]
    if schedule["kind"] != "AsyncSchedule" or not 0 < steps <= MOST_STEPS or run.clients > MOST_CLIENTS:
        return None
    rules = Rules.read(run.directory)
    rule = rules.async_rule()
    if rule is None or rules.believed or not rules.known:
        return None

    shapes = rules.resolved.fragments
    table = rules.costs.table(shapes)

    def cost(task: Dispatch) -> float:
        if task.resent:
            return rules.bill(shapes[task.fragment], task.client, held=True).cost
        return float(table[task.client, task.fragment])

    return dry_run(rules.async_ledger(), rule, rules.timing, cost, steps=steps)


def _idle(run: Run) -> str:
    idle = run.idle_share
    if idle < 0.01:
        return "No client waited."
    why = ""
    if len(run.rounds):
        why = ": in rounds the fast wait for the slow"
        if (bare := uncovered(run)) > 0.01:
            why += f"; a round left {bare:.0%} of the parameters without training"
    elif run.config["method"]["schedule"].get("concurrency"):
        why = ": concurrency limits the clients that train at a time"
    return f"Clients had no task for {idle:.0%} of the time{why}."


def _bound(run: Run) -> str:
    """Return a sentence that compares the longest task with the scheduler's delay bound."""
    done = run.tasks[run.tasks["done"]]
    if run.config["method"]["schedule"].get("scheduler") != "gre-raa" or done.empty:
        return ""
    rules = Rules.read(run.directory)
    if not rules.known or run.clients > MOST_CLIENTS:
        return ""
    bound, longest = rules.planner().bound, float((done["end"] - done["start"]).max())
    return f"The longest task took {longest:.3g}, the delay bound is {bound:.3g} before jitter."


def _failed(run: Run) -> str:
    """Return sentences about clients that failed, with the reasons, and about faults."""
    quarantined, faults = run.summary["quarantined"], run.summary["faults"]
    left = {entry["client"] for entry in quarantined}
    dropped = [entry for entry in run.summary["dropped_clients"] if entry["client"] not in left]
    told = [f"Quarantined: {'; '.join(describe_clients(quarantined))}."] if quarantined else []
    told += [f"Tasks were dropped of {'; '.join(describe_clients(dropped))}."] if dropped else []
    told += [f"{faults} faults were dealt with."] if faults else []
    return " ".join(told)
