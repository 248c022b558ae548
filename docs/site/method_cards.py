"""The page of methods: a table for each family, and a card for each method."""

from claim_rows import claims_of, read_rows
from papers import paper_of

from fedraa.cli.methods import choice_text
from fedraa.composition.method import Method
from fedraa.composition.registry import list_methods
from fedraa.methods.depthfl import FirstBlocks
from fedraa.submodels.personal_layers import BATCH_NORM

NAMES = {"submodel": "submodel", "local": "local training", "update": "server's update", "schedule": "schedule"}
ADAPTERS = ("flora", "hetlora")
SPLIT = ("splitfed",)
OWN_MODEL = (
    "Here `my_ext:adapted` is your function that returns a model with adapters. [Large models](guides/large-models.md) "
    "shows how to make one."
)
HEAD = """# All methods

You will find all methods by family. Each method has a card with its paper, its formula, its cost, and when to use it.

A method is four choices: the submodel that a client trains, the local training, the server's update, and the schedule.
`fedraa methods` prints the choices of every method. A method with the clock *updates* has no rounds: the server applies
each client update when it arrives, or several of them as soon as a buffer is full. A method with the clock *rounds*
waits for all clients of a round.

The name `a+b` combines two methods: it trains the submodels of `a` with the local training and the server step of `b`.
For example, `oap+scaffold` trains the submodels of `oap` with the control variates of `scaffold`. If `a` has no rounds,
its server stays, and `b` gives only the local training, as in `fedasync+ditto`. In the cards, d is the number of
parameters, N the number of clients and M the number of fragments.

"""


def method_cards() -> str:
    """Return the page: a table of the methods of each family, each followed by the cards of these methods."""
    families: dict[str, list[Method]] = {}
    named = list_methods()
    for method in named.values():
        families.setdefault(family(named[method.variant_of or method.name]), []).append(method)
    sections = [f"## {name}\n\n{_table(members)}\n\n{_cards(members)}" for name, members in families.items()]
    return HEAD + "\n\n".join(sections) + "\n"


def family(method: Method) -> str:
    """Return the family of a method that is no variant."""
    if method.name in ADAPTERS:
        return "Adapters (LoRA)"
    if method.name in SPLIT:
        return "Split learning"
    if method.submodel.scheduled:
        return "Fragments, without rounds"
    if method.submodel.whole:
        return "The whole model, without rounds" if method.asynchronous else "The whole model, in rounds"
    return "Submodels, without rounds" if method.asynchronous else "Submodels, in rounds"


def _table(members: list[Method]) -> str:
    lines = [
        f"| [{method.name}](#{method.name}) | {_clock(method)} | {_paper(method)} | {method.when} |"
        for method in members
    ]
    return "\n".join(["| method | clock | paper | when to use it |", "|---|---|---|---|", *lines])


def _cards(members: list[Method]) -> str:
    return "\n\n".join(_card(method) for method in members)


def _clock(method: Method) -> str:
    return "updates" if method.asynchronous else "rounds"


def _paper(method: Method) -> str:
    """Return the method's source in words, as a link if it has a paper."""
    paper = paper_of(method)
    return f"[{method.paper}]({paper.field('url')})" if paper else "No paper yet"


def _card(method: Method) -> str:
    name = method.name
    differs = method.note and paper_of(method) is not None
    note = f" Difference from the paper: {method.note}." if differs else ""
    claims = claims_of(name, read_rows())
    choices = "\n".join(f"| {NAMES[axis]} | `{choice_text(choice)}` |" for axis, choice in method.choices().items())
    return "\n\n".join(
        [
            f"### {name}",
            f"{_paper(method)}.{note}",
            f"| choice | value |\n|---|---|\n{choices}",
            f"**Formula.** {method.formula}",
            f"**Cost.** {_cost(method)}",
            f"**Memory at the server, besides the model.** {method.keeps or 'none'}.",
            f"**When to use it.** {method.when}",
            *(["**Claims.**", "\n".join(f"- {claim}" for claim in claims)] if claims else []),
            f"```sh\nfedraa run --method {name}{_model(method)} --{_clock(method)} 3 --engine local\n```",
            *([OWN_MODEL] if name in ADAPTERS else []),
        ]
    )


def _model(method: Method) -> str:
    """Return the options of a model if the method cannot train every model, and else an empty text."""
    if BATCH_NORM in method.local.personal_layers:
        return " --dataset mnist --data-dir DATA --model resnet18-bn --local-steps 5"
    if isinstance(method.submodel, FirstBlocks):
        return " --model mlp-exits --hidden 64 64"
    if method.name in ADAPTERS:
        return " --model my_ext:adapted"
    return ""


def _cost(method: Method) -> str:
    """Return a sentence on the vectors that a task sends, its passes over the data, and the time that clients wait."""
    trained = "the full model is" if method.submodel.whole else "only the submodel is"
    notes = [f"{trained} sent, trained and sent back"]
    if method.local.personal_layers:
        notes[0] += ", without the personal layers"
    passes = method.local.passes
    if passes > 1:
        notes.append(f"{passes} forward and backward passes per step")
    if method.local.full_gradient:
        notes.append("one more pass over the client's data")
    down, up, _ = getattr(getattr(method.update, "auxiliary", None), "extra_buffers", (0, 0, 0))
    if down or up:
        notes.append(f"{down} more vectors of the same size are sent to the client, and {up} back")
    notes.append("no client waits" if method.asynchronous else "a round lasts as long as its slowest task")
    return "; ".join(notes).capitalize() + "."
