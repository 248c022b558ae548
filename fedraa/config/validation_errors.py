"""Convert pydantic's validation errors about an experiment to an InputError about one field."""

from collections.abc import Mapping

from pydantic import ValidationError
from pydantic.fields import FieldInfo

from fedraa.config.file import unknown_field_error
from fedraa.errors import InputError
from fedraa.numbers import expected_text


def first_input_error(
    error: ValidationError, values: Mapping[str, object], known: Mapping[str, FieldInfo]
) -> ValueError:
    """Return the first error of pydantic as an InputError.

    An InputError of a validator is returned unchanged. If a field allows several types, the error names all of them.

    Args:
        error: The error of pydantic.
        values: The values before pydantic converted lists and arrays to tuples.
        known: The fields of the experiment by name.
    """
    details = error.errors(include_url=False)
    first = details[0]
    cause = first.get("ctx", {}).get("error")
    if isinstance(cause, ValueError):
        return cause
    field = str(first["loc"][0])
    value = first["input"]
    if first["type"] == "extra_forbidden":
        return unknown_field_error(field, known)
    alternatives = [
        expected_text(item) for item in details if item["loc"][0] == field and _is_same(item["input"], value)
    ]
    expected = " or ".join(dict.fromkeys(alternatives))
    examples = known[field].examples
    if examples and "text" in alternatives:
        expected += f", such as {examples[0]}"
    return InputError(field, got=values.get(field, value), expected=expected)


def _is_same(given: object, value: object) -> bool:
    """Return True if `given` is the value, or the tuple to which a single value of a list field was converted."""
    if isinstance(given, tuple) and len(given) == 1:
        return given is value or given[0] is value
    return given is value
