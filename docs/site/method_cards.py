"""The page of methods: a table, and a card for each method."""

from claim_rows import CLAIMS, claims_of

from fedraa.cli.methods import AXES, words
from fedraa.composition.method import Method
from fedraa.composition.registry import methods

NAMES = {"submodel": "what a client trains", "local": "how", "update": "the server", "schedule": "who, when"}
HEAD = """# Methods

A method is four choices: which part of the model a client trains, how, what the server does with what comes back, and
who trains when. The table is that of `fedraa methods`. `a+b` trains the submodels of `a` with the solver and the
server's step of `b`, such as `oap+scaffold`. d is the number of parameters, N the number of clients, M of fragments.

"""


def method_cards() -> str:
    """Return the page: a table of all methods, then a card for each."""
    named = methods()
    rows = [f"| [{name}](#{name}) | {_kind(method)} | {method.paper} |" for name, method in named.items()]
    table = "\n".join(["| method | clock | paper |", "|---|---|---|", *rows])
    return HEAD + table + "\n\n" + "\n\n".join(map(_card, named.values())) + "\n"


def _kind(method: Method) -> str:
    return "updates" if method.asynchronous else "rounds"


def _card(method: Method) -> str:
    name = method.name
    note = f" Note: {method.note}." if method.note else ""
    claims = claims_of(name, CLAIMS.read_text())
    choices = "\n".join(f"| {NAMES[axis]} | `{words(getattr(method, axis))}` |" for axis in AXES)
    ends = "updates" if method.asynchronous else "rounds"
    return "\n\n".join(
        [
            f"## {name}",
            f"{method.paper}.{note}",
            f"| choice | here |\n|---|---|\n{choices}",
            f"**Formula.** {method.formula}",
            f"**Cost.** {_cost(method)}",
            f"**Memory at the server, besides the model.** {method.keeps or 'none'}.",
            f"**When.** {method.when}",
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
    notes.append("no client waits" if method.asynchronous else "a round lasts as long as its slowest task")
    return "; ".join(notes).capitalize() + "."
