"""The class Experiment: all settings of a run."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Self

from pydantic import model_validator

from fedraa.config.field_docs import document_fields
from fedraa.config.file import check_names, read_values
from fedraa.config.no_effect import refuse_without_effect
from fedraa.config.section import Section
from fedraa.config.sections import (
    AttackOptions,
    ClientOptions,
    ClusterOptions,
    DeviceOptions,
    EvaluationOptions,
    ExecutionOptions,
    FaultOptions,
    LocalOptions,
    MethodOptions,
    OutputOptions,
    PrivacyOptions,
    ProblemOptions,
    StopOptions,
)
from fedraa.errors import InputError
from fedraa.numbers import format_count


class Experiment(
    # pydantic reverses the base classes, so `--help-all` shows the sections from the last one up.
    OutputOptions,
    ClusterOptions,
    ExecutionOptions,
    FaultOptions,
    PrivacyOptions,
    AttackOptions,
    EvaluationOptions,
    StopOptions,
    LocalOptions,
    MethodOptions,
    DeviceOptions,
    ClientOptions,
    ProblemOptions,
):
    """The settings of one run of one method. They are checked when the object is created.

    Every field is also an option of the command line. None means the method's value. `fedraa.run` refuses a field that
    the method lacks.
    """

    if TYPE_CHECKING:
        # Values are converted and checked at run time, so callers may pass any type.
        def __init__(self, **values: object) -> None: ...

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Return the experiment of a TOML file.

        The keys of the file are the experiment's fields. A component is a text, or a table with the key `kind`. Raises
        InputError if the file has a mistake. The field of the error names the file and the option: `my.toml: lr`.
        """
        values = read_values(path, cls.model_fields)
        try:
            return cls(**values)
        except InputError as error:
            raise error.with_field(f"{path}: {error.field}") from None

    def replace_fields(self, fields: Mapping[str, object]) -> Self:
        """Return a checked copy of the experiment with other values of some fields."""
        check_names(fields, type(self).model_fields)
        return type(self)(**dict(self) | dict(fields))

    @model_validator(mode="after")
    def _check_sections_together(self) -> Self:
        refuse_without_effect(self)
        if self.resources is not None:
            self._check_resources(self.resources)
        return self

    def _check_resources(self, resources: tuple[str, ...]) -> None:
        # This import takes seconds.
        from fedraa.devices.worker_groups import group_of_clients, parse_group

        groups = [parse_group(text) for text in resources]
        group_of_clients(groups, self.compute, self.client_count)
        total = sum(group.workers for group in groups)
        if self.workers not in (None, total):
            problem = f"it does not match the {format_count(total, 'worker')} of resources"
            raise InputError("workers", problem, got=self.workers, hint="give one of the two")


def with_fields(experiment: object, fields: Mapping[str, object]) -> Experiment:
    """Return a copy of an experiment with other values of some fields.

    Args:
        experiment: The experiment; None for an experiment with the default values.
        fields: The new values by name.

    Raises:
        InputError: `experiment` is another object, or a value is not allowed.
    """
    if experiment is None:
        experiment = Experiment()
    if not isinstance(experiment, Experiment):
        raise InputError("experiment", got=experiment, expected="an Experiment, or its fields by their names")
    if not fields:
        return experiment
    return experiment.replace_fields(fields)


# The fields that may have other values in a resumed run. The run directory is an argument of a resume, so the field
# `out` has no effect.
CHANGEABLE = Experiment.may_change() - {"out"}
# The sections in the order of `--help-all`.
SECTIONS = tuple(base for base in reversed(Experiment.__bases__) if issubclass(base, Section))
document_fields(Experiment)
