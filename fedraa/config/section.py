"""The base class of the sections of an experiment, which checks and converts the values of fields."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_origin

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    SkipValidation,
    ValidationError,
    field_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core.core_schema import ValidationInfo

from fedraa.arguments import refuse_null
from fedraa.components.text import KIND, text_of
from fedraa.config.validation_errors import first_input_error
from fedraa.errors import InputError

AUTO_CAPACITIES = "auto"


def _written_values(values: Mapping[str, Any]) -> dict[str, Any]:
    return {path: text_of(value) for path, value in values.items()}


if TYPE_CHECKING:
    Component = Any
    Override = Any
else:
    # A component is text on the command line and in config.json. Python code may also pass an object.
    Component = Annotated[str, SkipValidation, PlainSerializer(text_of, when_used="json")]
    # The user writes texts PATH=VALUE on the command line, and a mapping in Python code or a file. The field holds a
    # mapping in both cases.
    Override = Annotated[tuple[str, ...], SkipValidation, PlainSerializer(_written_values, when_used="json")]


def _refuse_impossible(value: object, info: ValidationInfo) -> object:
    if isinstance(value, str | Path):
        refuse_null(str(info.field_name), Path(value))
    if isinstance(value, str) and not value:
        problem = "an empty text would be the current folder"
        raise InputError(str(info.field_name), problem, got=value, hint="give a path, such as . for the current folder")
    return value


# A path may also be a text.
PathText = Annotated[Path, Field(strict=False), BeforeValidator(_refuse_impossible)]


class Section(BaseModel):
    """Fields of an experiment that belong together. A subclass's docstring is its heading in `--help-all`."""

    # Most commands create no experiment, so pydantic builds the validators only when one is created.
    # Strict validators refuse True as the number 1, and text as a number.
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True, defer_build=True, strict=True
    )

    MAY_CHANGE: ClassVar[frozenset[str]] = frozenset()
    """Fields that the user may change when a run is resumed, because earlier steps do not depend on them."""

    @classmethod
    def may_change(cls) -> frozenset[str]:
        """Return the fields that the user may change when a run is resumed."""
        return frozenset().union(*(vars(base).get("MAY_CHANGE", ()) for base in cls.__mro__))

    def is_set(self, name: str) -> bool:
        """Return True if the value of a field differs from its default."""
        return bool(getattr(self, name) != type(self).model_fields[name].default)

    def __setattr__(self, name: str, value: object) -> None:
        problem = "the fields of an experiment cannot be changed"
        raise InputError(name, problem, got=value, hint="make a copy with other values: replace_fields({'lr': 0.1})")

    def __hash__(self) -> int:
        # A component may be an object without a hash.
        return hash(tuple(value for value in dict(self).values() if isinstance(value, str | int | float)))

    def __init__(self, **values: object) -> None:
        fields = type(self).model_fields
        try:
            super().__init__(**values)
        except ValidationError as error:
            single = {
                name: value for name, value in values.items() if name in fields and not _is_tuple_field(fields[name])
            }
            raise first_input_error(error, single, fields) from None

    @field_validator("*", mode="before")
    @classmethod
    def _convert_value(cls, value: object, info: ValidationInfo) -> object:
        """Return the value in the form of config.json. If the field holds a tuple, a single value becomes a tuple."""
        if isinstance(value, np.ndarray):
            value = value.tolist()
        field = cls.model_fields[str(info.field_name)]
        is_table = isinstance(value, Mapping) and KIND not in value
        is_one = not is_table and not isinstance(value, list | tuple | range | set | type(None))
        is_auto = isinstance(value, str) and value == AUTO_CAPACITIES
        if is_one and _is_tuple_field(field) and not is_auto:
            value = (value,)
        return cls._to_config_form(value)

    @classmethod
    def _to_config_form(cls, value: object) -> object:
        """Return the value in the form of config.json. File paths and components become texts.

        A float without a fraction, such as 1e3, becomes an int, because fields with integers accept it.
        """
        if isinstance(value, np.generic):
            value = value.item()
        if isinstance(value, float) and value.is_integer():
            return int(value)
        if isinstance(value, list | tuple | range):
            return tuple(cls._to_config_form(item) for item in value)
        if isinstance(value, Path):
            return str(value)
        if isinstance(value, Mapping) and isinstance(value.get(KIND), str):
            return text_of(value)
        return value


def _is_tuple_field(field: FieldInfo) -> bool:
    hints = (field.annotation, *get_args(field.annotation))
    return any(get_origin(hint) is tuple for hint in hints)
