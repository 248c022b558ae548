"""The command that reproduces a run."""

import shlex

from fedraa.config.experiment import Experiment

# Where a run was written and what it showed do not change it.
LEFT_OUT = {"out", "quiet"}


def command(experiment: Experiment) -> str:
    """`fedraa run` with every flag that is not at its default."""
    words = ["fedraa", "run"]
    for name, value in experiment.model_dump(mode="json").items():
        field = Experiment.model_fields[name]
        if name in LEFT_OUT or getattr(experiment, name) == field.default:
            continue
        flag = "--" + name.replace("_", "-")
        if field.annotation is bool:
            words.append(flag if value else flag.replace("--", "--no-", 1))
        else:
            words += [flag, *map(str, value if isinstance(value, list) else [value])]
    return shlex.join(words)
