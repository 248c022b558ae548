"""Recognition of numbers, dates and missing values in the texts of a table."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedraa.data.tree import Array

MISSING = {"na", "n/a", "#n/a", "nan", "null", "none", "nil", "missing", "?", "-", "--", "."}
INFINITE = {"inf", "infinity"}
CURRENCY = r"[A-Z]{0,3}[$€£¥₹₩₽]|USD|EUR|GBP|CHF|JPY|CNY|INR|Rs\.?"

_NUMBER = r"\d[\d.,'’ \u00a0\u202f]*(?:[eE][-+]?\d+)?|[.,]\d+(?:[eE][-+]?\d+)?|[iI]nf(?:inity)?(?![A-Za-z])"
_WRITTEN = re.compile(
    rf"(?P<bracket>\()?(?P<sign>[-+−]?)\s*(?P<before>{CURRENCY})?\s*(?P<inner>[-+−]?)"
    rf"(?P<number>{_NUMBER})\s*(?P<after>%|{CURRENCY}|[A-Za-z°µ/²³]+)?(?(bracket)\))"
)
_SPACES = "'’ \u00a0\u202f"
_MONTH = r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DATE = re.compile(
    r"(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*,? *)?"
    r"(?:\d{4}[-/.]\d{1,2}(?:[-/.]\d{1,2})?|\d{1,2}[-/.]\d{1,2}[-/.](?:\d{4}|\d{2})"
    rf"|(?:\d{{1,2}}(?:st|nd|rd|th)?[ .-]*)?{_MONTH}[ .,-]*(?:\d{{1,2}}(?:st|nd|rd|th)?[ ,-]+)?\d{{2,4}})"
    r"(?:[T ,]+\d{1,2}:\d{2}.*)?"
    r"|\d{1,2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?[ap]\.?m\.?)?",
    re.IGNORECASE,
)


def _number_pattern(separators: str, decimal: str) -> re.Pattern[str]:
    groups = rf"[1-9]\d{{0,2}}(?P<separator>[{separators}])(?:\d{{2,3}}(?P=separator))*\d{{3}}"
    return re.compile(rf"(?P<whole>{groups}|\d+|(?={re.escape(decimal)}\d))(?:{re.escape(decimal)}(?P<part>\d*))?")


POINT = _number_pattern("," + _SPACES, ".")
COMMA = _number_pattern("." + _SPACES, ",")


@dataclass(frozen=True)
class _Parts:
    """The parts of a text that may be a number, such as `-1,234.5e3 kg`.

    Attributes:
        digits: The digits with their separators.
        exponent: The power of ten.
        negative: True for a negative number.
        unit: The unit, currency or percent sign; empty if the text has none.
        has_symbol: True if the unit is a currency or a percent sign.
    """

    digits: str
    exponent: int
    negative: bool
    unit: str
    has_symbol: bool


def read_numbers(words: Sequence[str], *, decimal_comma: bool = False) -> Array:
    """Return the number in each text as float64 [n], or NaN if the text is not a number.

    A number may have a sign, thousands separators, a currency, a percent sign or a unit, such as `-1,234.5`, `(15)`,
    `$12`, `3 %` or `12 kg`. A unit is accepted only if all texts have it.

    Args:
        words: The texts.
        decimal_comma: True to read an ambiguous text such as `1.234` as 1234.
    """
    parts = [_split_word(word) for word in words]
    complete = all(part is not None or is_missing(word) for part, word in zip(parts, words, strict=True))
    parts = _of_one_unit(parts, complete=complete)
    by_point, by_comma = _parse_values(parts, POINT), _parse_values(parts, COMMA)
    unread, unread_by_comma = np.isnan(by_point).sum(), np.isnan(by_comma).sum()
    if unread_by_comma < unread or (decimal_comma and unread_by_comma == unread):
        return by_comma
    return by_point


def has_decimal_comma(words: Sequence[str]) -> bool:
    """Return True if all texts are numbers with a decimal comma, and at least one is unambiguous, such as `3,14`."""
    parts = [_split_word(word) for word in words if not is_missing(word)]
    if not parts or None in parts:
        return False
    return bool(np.isfinite(_parse_values(parts, COMMA)).all() and np.isnan(_parse_values(parts, POINT)).any())


def is_missing(word: str) -> bool:
    """Return True for the text of a missing value, such as `n/a`."""
    return word.lower() in MISSING


def is_date(word: str) -> bool:
    """Return True for a date or a time of day."""
    return _DATE.fullmatch(word) is not None


def begins_with_number(word: str) -> bool:
    """Return True if the text begins with a digit, perhaps after a sign or a currency."""
    return re.match(rf"[-+(~<>]*\s*(?:{CURRENCY})?\s*\d", word) is not None


def _split_word(word: str) -> _Parts | None:
    match = _WRITTEN.fullmatch(word)
    if match is None or (match["sign"] and match["inner"]) or (match["before"] and match["after"]):
        return None
    digits, _, exponent = match["number"].strip(_SPACES).lower().partition("e")
    negative = match["bracket"] is not None or "-" in (match["sign"], match["inner"])
    negative = negative or "−" in (match["sign"], match["inner"])
    unit = match["before"] or match["after"] or ""
    symbol = unit == "%" or re.fullmatch(CURRENCY, unit) is not None
    return _Parts(digits, int(exponent or 0), negative, unit, symbol)


def _of_one_unit(parts: list[_Parts | None], *, complete: bool) -> list[_Parts | None]:
    """Return a copy of the list, with None in place of each number that has an unaccepted unit.

    - A unit of letters is accepted only if all texts are numbers with this unit.
    - A currency is also accepted if some texts have no currency.
    - A percent sign is accepted only if most texts have one. Then numbers without a percent sign are not accepted.

    Args:
        parts: The parts of each text; None for a text that is not a number.
        complete: True if all texts are numbers or missing values.
    """
    units = [part.unit for part in parts if part is not None]
    if complete and len(set(units)) == 1:
        return parts
    symbols = [part.unit for part in parts if part is not None and part.has_symbol]
    accepted = {""}
    if symbols:
        unit = max(sorted(set(symbols)), key=symbols.count)
        if unit != "%":
            accepted = {"", unit}
        elif symbols.count("%") > units.count(""):
            accepted = {"%"}
    return [None if part is None or part.unit not in accepted else part for part in parts]


def _parse_values(parts: Sequence[_Parts | None], grammar: re.Pattern[str]) -> Array:
    values = np.full(len(parts), np.nan)
    for place, part in enumerate(parts):
        if part is None:
            continue
        if part.digits in INFINITE:
            value = np.inf
        else:
            match = grammar.fullmatch(part.digits)
            if match is None:
                continue
            whole = re.sub(r"\D", "", match["whole"])
            value = float(f"{whole or 0}.{match['part'] or 0}e{part.exponent}")
        values[place] = -value if part.negative else value
    return values
