"""The base class of the sections of an experiment. It validates their fields."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args, get_origin

import numpy as np
from pydantic import BaseModel, ConfigDict, PlainSerializer, SkipValidation, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core.core_schema import ValidationInfo

from fedraa.components.text import KIND, text_of
from fedraa.config.validation_errors import input_error

AUTO_CAPACITIES = "auto"


def _written_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a mapping of paths to values in the form of config.json."""
    return {path: text_of(value) for path, value in values.items()}


if TYPE_CHECKING:
    Component = Any
    Override = Any
else:
    # The command line reads text. Python code may also pass objects, which are saved as text.
    Component = Annotated[str, SkipValidation, PlainSerializer(text_of, when_used="json")]
    # The command line reads PATH=VALUE texts. Python code and files pass mappings. The value is always a mapping.
    Override = Annotated[tuple[str, ...], SkipValidation, PlainSerializer(_written_values, when_used="json")]


class Section(BaseModel):
    """Fields of an experiment that belong together. The docstring of a section is its heading in `--help-all`."""

    # Most commands validate no experiment, so that its validators are built when the first one is made.
    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, use_attribute_docstrings=True, defer_build=True
    )

    MAY_CHANGE: ClassVar[frozenset[str]] = frozenset()
    """Fields that may be different when a run is resumed, because they do not affect the earlier steps."""

    @classmethod
    def may_change(cls) -> frozenset[str]:
        """Return the fields of this section and of its base classes that may be different when a run is resumed."""
        return frozenset().union(*(vars(base).get("MAY_CHANGE", ()) for base in cls.__mro__))

    def __init__(self, **values: object) -> None:
        """Raise InputError for the first field that cannot be used."""
        fields = type(self).model_fields
        try:
            super().__init__(**values)
        except ValidationError as error:
            single = {
                name: value for name, value in values.items() if name in fields and not _takes_several(fields[name])
            }
            raise input_error(error, single, fields) from None

    @field_validator("*", mode="before")
    @classmethod
    def _one_or_several(cls, value: object, info: ValidationInfo) -> object:
        """Convert a single value to a tuple if the field holds several values. Also accept components as mappings."""
        if isinstance(value, np.ndarray):
            value = value.tolist()
        field = cls.model_fields[str(info.field_name)]
        is_table = isinstance(value, Mapping) and KIND not in value
        is_one = not is_table and not isinstance(value, list | tuple | range | set | type(None))
        is_auto = isinstance(value, str) and value == AUTO_CAPACITIES
        if is_one and _takes_several(field) and not is_auto:
            value = (value,)
        return cls._written(value)

    @classmethod
    def _written(cls, value: object) -> object:
        """Return components that are mappings as text, which a resumed run can read."""
        if isinstance(value, list | tuple):
            return tuple(cls._written(item) for item in value)
        if isinstance(value, Mapping) and isinstance(value.get(KIND), str):
            return text_of(value)
        return value


def _takes_several(field: FieldInfo) -> bool:
    """Return True if the values of the field are a tuple."""
    hints = (field.annotation, *get_args(field.annotation))
    return any(get_origin(hint) is tuple for hint in hints)
