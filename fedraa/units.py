"""Numbers as people read them."""


def quantity(value: object, unit: str) -> str:
    """A number with a decimal prefix: 1234567 B is 1.23 MB."""
    number = float(str(value))
    for prefix in ("", "k", "M", "G", "T"):
        if number < 999.5:
            return f"{number:.3g} {prefix}{unit}"
        number /= 1000
    return f"{number:.4g} P{unit}"


def counted(number: int, noun: str) -> str:
    """1 run, 2 runs."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
