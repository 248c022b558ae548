"""Compare one run with its prediction: the time, the staleness and the delay bound."""

from fedraa.engine.forecast import Forecast, dry_run
from fedraa.ledger.dispatch import Dispatch
from fedraa.numbers import format_count
from fedraa.objectives.metric_spec import metric_heading
from fedraa.replay.rules import Rules
from fedraa.report.runs import Run
from fedraa.report.verdict import still_improves, untrained_fraction
from fedraa.rundir.failures import describe_clients, retried_clients

# A larger run gets no prediction, because its dry run (a simulation without training) would take too long.
MAX_STEPS = 20_000
MAX_CLIENTS = 10_000
# A time within this fraction of the predicted time counts as equal.
TIME_TOLERANCE = 0.02


def compare_with_plan(run: Run) -> str:
    """Return sentences about the run's result and its difference from the prediction."""
    notes = [
        _describe_end(run),
        _describe_time(run),
        _describe_idle_time(run),
        _describe_delay_bound(run),
        _describe_failures(run),
    ]
    if still_improves(run):
        notes.append("It still improved at the end: try a larger budget.")
    return " ".join(note for note in notes if note)


def _describe_end(run: Run) -> str:
    main = run.metric_spec.main
    best = run.metric_spec.best(run.evals[main])
    last = float(run.evals[main].iloc[-1])
    result = f"{metric_heading(main)} {last:.4f}"
    if best != last:
        result += f" (best {best:.4f})"
    reason = str(run.summary["reason"])
    end = f"{reason} at time {run.end:.4g} after {_step_unit(run)}, with {result}."
    if run.ended:
        return f"Ended by {end}"
    if reason == "interrupted":
        return f"Not ended: {end} To continue: fedraa resume {run.directory}."
    return f"Not ended: {end}"


def _step_unit(run: Run) -> str:
    """Return the number of rounds or updates, with its unit."""
    is_round = run.config["method"]["schedule"]["kind"] in ("Rounds", "ScheduledRounds")
    return format_count(run.summary["steps"], "round" if is_round else "update")


def _describe_time(run: Run) -> str:
    """Return sentences that compare the run's time and staleness with a dry run.

    If no dry run is possible, the sentences compare the tasks' times with their costs.
    """
    done = run.done_tasks
    predicted = forecast_run(run)
    if predicted is None:
        if done.empty or not done["cost"].sum():
            return ""
        ratio = float((done["end"] - done["start"]).sum() / done["cost"].sum())
        if abs(ratio - 1) < TIME_TOLERANCE:
            return "Its tasks took the time that their costs predict."
        return f"Its tasks took {ratio:.3g} times the time that their costs predict."
    ratio = float(done["end"].max()) / predicted.time
    duration = "It took the predicted time"
    if abs(ratio - 1) >= TIME_TOLERANCE:
        duration = f"It took {ratio:.2f} times the predicted time of {predicted.time:.4g}"
    actual = (f"{run.summary['staleness_mean']:.2f}", str(run.summary["staleness_max"]))
    expected = (f"{predicted.staleness_mean:.2f}", str(predicted.staleness_max))
    staleness = f"the staleness was {actual[0]} versions on average and at most {actual[1]}"
    if actual == expected:
        return f"{duration}; {staleness}, as predicted."
    return f"{duration}; {staleness} (predicted: {expected[0]} and {expected[1]})."


def forecast_run(run: Run) -> Forecast | None:
    """Return a dry run: a simulation of the run with the same costs and without training.

    Return None if the costs do not determine the run, because it has rounds, sampled submodels or custom components.
    """
    steps = int(run.summary["steps"])
    schedule = run.config["method"]["schedule"]
    if schedule["kind"] != "AsyncSchedule" or not 0 < steps <= MAX_STEPS or run.clients > MAX_CLIENTS:
        return None
    # Every value of `next_client` except `uniform` selects clients by losses or durations, which a dry run lacks.
    if schedule.get("next_client", "uniform") != "uniform":
        return None
    rules = Rules.read(run.directory)
    rule = rules.async_rule()
    if rule is None or rules.custom_components or not rules.costs_known:
        return None

    shapes = rules.resolved.fragments

    def task_cost(task: Dispatch, now: float) -> float:
        return rules.task_costs(shapes[task.fragment], task, now, None).modelled.duration

    return dry_run(rules.async_ledger(), rule, rules.timing, task_cost, steps=steps)


def _describe_idle_time(run: Run) -> str:
    idle = run.idle_fraction
    if idle < 0.01:
        return "No client waited."
    reason = ""
    if len(run.rounds):
        reason = ": in rounds the fast clients wait for the slow ones"
        if len(run.tasks) < len(run.rounds) * run.clients:
            reason = ": a round has only some of the clients, and its fast clients wait for the slow ones"
        untrained = untrained_fraction(run)
        if untrained > 0.01:
            reason += f"; a round left on average {untrained:.0%} of the parameters without training"
    elif run.config["method"]["schedule"].get("concurrency"):
        reason = ": concurrency limits the number of clients that train at a time"
    return f"Clients had no task for {idle:.0%} of the time{reason}."


def _describe_delay_bound(run: Run) -> str:
    """Return a sentence that compares the longest task with the scheduler's delay bound."""
    done = run.done_tasks
    if run.config["method"]["schedule"].get("scheduler") != "gre-raa" or done.empty:
        return ""
    rules = Rules.read(run.directory)
    if not rules.costs_known or run.clients > MAX_CLIENTS:
        return ""
    longest = float((done["end"] - done["start"]).max())
    bound = rules.planner().bound
    causes = "the random factor of durations"
    if run.config["resolved"]["availability"] is not None:
        causes += " and the pauses of devices"
    return f"The longest task took {longest:.3g}; the delay bound is {bound:.3g}, before {causes}."


def _describe_failures(run: Run) -> str:
    """Return sentences about failed clients, with the reasons, and about faults."""
    quarantined = run.summary["quarantined"]
    faults = run.summary["faults"]
    retried = retried_clients(run.summary)
    sentences = []
    if quarantined:
        sentences.append(f"Quarantined: {'; '.join(describe_clients(quarantined))}.")
    if retried:
        sentences.append(f"Clients with dropped tasks: {'; '.join(describe_clients(retried))}.")
    if faults:
        sentences.append(f"The run handled {format_count(faults, 'fault')} of workers.")
    return " ".join(sentences)
