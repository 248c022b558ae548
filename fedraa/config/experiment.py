"""The class Experiment, with all settings of a run. It checks them when it is created, and a run saves them."""

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


class Experiment(
    # pydantic takes the fields of the last base class first: `--help-all` shows the sections in this order from below.
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
    """One run of one method. Every field is a command-line flag of the same name.

    A field with the default None has the method's value, or no effect if the method has none.
    """

    if TYPE_CHECKING:
        # Values are converted and checked at run time, so callers may pass any type. Without this signature, a type
        # checker would demand the exact types of the fields.
        def __init__(self, **values: object) -> None: ...

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Self:
        """Return the experiment that a TOML file describes.

        The keys of the file are the experiment's fields. A component is text or a table with `kind`. Raises InputError,
        with the file before the field: `my.toml: lr`.
        """
        values = read_values(path, cls.model_fields)
        try:
            return cls(**values)
        except InputError as error:
            raise error.with_field(f"{path}: {error.field}") from None

    def replace_fields(self, fields: Mapping[str, object]) -> Self:
        """Return a copy of the experiment with these fields, which are checked like those of a new experiment."""
        check_names(fields, type(self).model_fields)
        return type(self)(**dict(self) | dict(fields))

    @model_validator(mode="after")
    def _check_sections_together(self) -> Self:
        refuse_without_effect(self)
        if self.resources is not None:
            self._check_resources(self.resources)
        return self

    def _check_resources(self, resources: tuple[str, ...]) -> None:
        # This module takes seconds to import.
        from fedraa.devices.worker_groups import group_of_clients, parse_group

        groups = [parse_group(text) for text in resources]
        group_of_clients(groups, self.compute, self.client_count)
        total = sum(group.workers for group in groups)
        if self.workers not in (None, total):
            problem = f"it does not match the {total} workers of resources"
            raise InputError("workers", problem, got=self.workers, hint="give one of the two")


def with_fields(experiment: object, fields: Mapping[str, object]) -> Experiment:
    """Return a copy of the given experiment with these fields. With None, the default experiment is copied.

    Raises InputError for another object, and for fields that cannot be used.
    """
    if experiment is None:
        experiment = Experiment()
    if not isinstance(experiment, Experiment):
        raise InputError("experiment", got=experiment, expected="an Experiment, or its fields by their names")
    if not fields:
        return experiment
    return experiment.replace_fields(fields)


# The sections in the order of `--help-all`.
SECTIONS = tuple(base for base in reversed(Experiment.__bases__) if issubclass(base, Section))
document_fields(Experiment)
