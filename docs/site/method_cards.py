"""The page of methods: a card for each, from the table and from cards.toml, which says what no code does."""

import tomllib
from pathlib import Path

from claim_rows import CLAIMS, claims_of

from fedraa.cli.methods import AXES, words
from fedraa.composition.method import Method
from fedraa.methods.catalog import METHODS

CARDS = Path(__file__).with_name("cards.toml")
NAMES = {"submodel": "what a client trains", "local": "how", "update": "the server", "schedule": "who, when"}
NEEDS = {"formula", "when"}
HEAD = """# Methods

A method is four choices: which part of the model a client trains, how, what the server does with what comes back, and
who trains when. The table is that of `fedraa methods`. `a+b` trains the submodels of `a` with the solver and the
server's step of `b`, such as `oap+scaffold`. d is the number of parameters, N the number of clients, M of fragments.

"""


def method_cards() -> str:
    """A table of all, then a card for each; ValueError if a method has no card, or a card no method."""
    cards = tomllib.loads(CARDS.read_text())
    if cards.keys() != METHODS.keys() or any(card.keys() != NEEDS for card in cards.values()):
        wrong = sorted(cards.keys() ^ METHODS.keys()) or "a card"
        raise ValueError(f"{CARDS.name}: {wrong} does not match the table of methods, each of which has {NEEDS}")
    rows = [f"| [{name}](#{name}) | {_kind(method)} | {method.paper} |" for name, method in METHODS.items()]
    table = "\n".join(["| method | clock | paper |", "|---|---|---|", *rows])
    return HEAD + table + "\n\n" + "\n\n".join(_card(name, METHODS[name], cards[name]) for name in METHODS) + "\n"


def _kind(method: Method) -> str:
    return "updates" if method.asynchronous else "rounds"


def _card(name: str, method: Method, card: dict[str, str]) -> str:
    note = f" Note: {method.note}." if method.note else ""
    claims = claims_of(name, CLAIMS.read_text())
    choices = "\n".join(f"| {NAMES[axis]} | `{words(getattr(method, axis))}` |" for axis in AXES)
    ends = "updates" if method.asynchronous else "rounds"
    return "\n\n".join(
        [
            f"## {name}",
            f"{method.paper}.{note}",
            f"| choice | here |\n|---|---|\n{choices}",
            f"**Formula.** {card['formula']}",
            f"**Cost.** {_cost(method)}",
            f"**Memory at the server, besides the model.** {method.keeps or 'none'}.",
            f"**When.** {card['when']}",
            *(["**Claims.**", "\n".join(f"- {claim}" for claim in claims)] if claims else []),
            f"```sh\nfedraa run --method {name} --{ends} 3 --engine local\n```",
        ]
    )


def _cost(method: Method) -> str:
    """What a task takes, by its choices."""
    part = "the full model is" if method.submodel.whole else "only the submodel is"
    notes = [f"{part} sent, trained and sent back"]
    passes = method.local.passes
    if passes > 1:
        notes.append(f"{passes} forward and backward passes per step")
    if method.local.full_gradient:
        notes.append("one more pass over the client's data")
    down, up, _ = getattr(getattr(method.update, "auxiliary", None), "extra_buffers", (0, 0, 0))
    if down or up:
        notes.append(f"{down} more buffers of that size down and {up} up")
    notes.append("nobody waits" if method.asynchronous else "a round lasts as long as its slowest task")
    return "; ".join(notes).capitalize() + "."
