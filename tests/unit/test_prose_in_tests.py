"""At most MAX_TESTS tests assert the wording of a message, so that messages can be improved.

A test asserts wording if one of its string literals has MIN_WORDS words or more and is compared to the text of an error
or to printed text. The literals are those that are

- given to `match=` of `pytest.raises` or `pytest.warns`,
- names that `refuses` or `only` (the assertions on errors and on findings) look for,
- compared by `==`, `!=`, `in` or `not in` to text, or given to one of SEARCHES together with text,
- given to a function of the same module that reads text,
- values that reach one of these places through a parameter of the test or a local variable.

Text is what comes from an attribute in TEXTS, from `caplog` and the like, from the exception of `pytest.raises`, and
from a variable or a function of the module that has any of these.

Words are runs of letters between spaces. These are not words: the field before the first colon, text in quotes or
braces, options, files, paths, numbers, patterns, names with capitals inside, and code with an `import`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
MAX_TESTS = 40
MIN_WORDS = 4
SEARCHES = {"startswith", "endswith", "search", "match", "fullmatch", "findall", "count", "index"}
TEXTS = {"readouterr", "stdout", "stderr", "communicate", "getMessage", "__notes__"}
FIXTURES = {"caplog", "capsys", "capfd"}
CATCHERS = {"raises", "warns", "refuses", "catch_warnings"}
CODE = re.compile(r"^import |\bfrom \w+ import ", re.MULTILINE)
FIELD = re.compile(r"^\^?(fedraa: )?[\w.\[\]-]+: ")
NO_WORDS = re.compile(r"""'[^']*'|"[^"]*"|`[^`]*`|\{[^}]*\}|\\[a-zA-Z][+*]?|\[[^\]]*\][+*]?|\.[*+]\??|[\\^$]""")
WORD = re.compile(r"[A-Za-z][a-z]+(['-][a-z]+)*")


def count_words(text: str) -> int:
    """Return the number of words of a literal."""
    if CODE.search(text):
        return 0
    plain = NO_WORDS.sub(" ", FIELD.sub("", text.replace("\\.", ".").replace("\\(", "(")))
    return sum(WORD.fullmatch(token.strip(".,:;!?)|")) is not None for token in plain.split())


def call_name(node: ast.AST) -> str:
    """Return the last name of a call: `raises` of `pytest.raises(...)`."""
    if not isinstance(node, ast.Call):
        return ""
    return str(getattr(node.func, "attr", getattr(node.func, "id", "")))


def variables(node: ast.AST) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield part.id


def literals(node: ast.AST) -> Iterator[str]:
    """Yield each string of an expression. An f-string is one string, with {} for each value."""
    if isinstance(node, ast.JoinedStr):
        yield "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
        return
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    for child in ast.iter_child_nodes(node):
        yield from literals(child)


def bindings(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the target and the value of each assignment, loop and `with`."""
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield target, node.value
        elif isinstance(node, ast.NamedExpr):
            yield node.target, node.value
        elif isinstance(node, ast.For | ast.comprehension):
            yield node.target, node.iter
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            yield node.optional_vars, node.context_expr


def parameters(test: ast.FunctionDef) -> Iterator[tuple[str, list[str]]]:
    """Yield each parameter of `pytest.mark.parametrize` with the literals that it gets."""
    for mark in test.decorator_list:
        if not isinstance(mark, ast.Call) or call_name(mark) != "parametrize":
            continue
        names = [name.strip() for text in literals(mark.args[0]) for name in text.split(",")]
        rows = list(ast.iter_child_nodes(mark.args[1]))
        for column, name in enumerate(names):
            yield name, [text for row in rows for text in literals(cell(row, column, len(names)))]


def cell(row: ast.AST, column: int, columns: int) -> ast.AST:
    """Return the value of one parameter in a row: a tuple, a list or `pytest.param(...)`. Else return the whole row."""
    cells: list[ast.expr] = []
    if isinstance(row, ast.Tuple | ast.List):
        cells = row.elts
    elif isinstance(row, ast.Call):
        cells = row.args
    return cells[column] if 1 < columns == len(cells) else row


class Wording(ast.NodeVisitor):
    """The literals that a test compares to text.

    Args:
        test: The function.
        readers: The functions of its module that read text.
    """

    def __init__(self, test: ast.FunctionDef, readers: set[str]) -> None:
        self.readers = readers
        self.texts = set(FIXTURES)
        self.values = dict(parameters(test))
        self.literals: list[str] = []
        bound = list(bindings(test))
        before = 0
        # Text passes from variable to variable.
        while len(self.texts) > before:
            before = len(self.texts)
            for target, value in bound:
                if call_name(value) in CATCHERS or self.is_text(value):
                    self.texts.update(variables(target))
        for target, value in bound:
            for name in variables(target):
                self.values.setdefault(name, []).extend(() if self.is_text(value) else literals(value))
        self.visit(test)

    def is_text(self, node: ast.AST) -> bool:
        """Return True if a part of an expression is text of an error or printed text."""
        return any(
            (isinstance(part, ast.Name) and part.id in self.texts)
            or (isinstance(part, ast.Attribute) and part.attr in TEXTS)
            or call_name(part) in self.readers
            for part in ast.walk(node)
        )

    def visit_Compare(self, node: ast.Compare) -> None:
        if self.is_text(node):
            self.add(node.left, *node.comparators)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = call_name(node)
        if name in ("refuses", "only"):
            self.add(*node.args[1:])
        elif name in self.readers or (name in SEARCHES and self.is_text(node)):
            self.add(*node.args)
        elif name in CATCHERS:
            self.add(*(keyword.value for keyword in node.keywords if keyword.arg == "match"))
        self.generic_visit(node)

    def add(self, *nodes: ast.expr) -> None:
        """Collect the literals of some expressions and of the variables in them."""
        for node in nodes:
            self.literals.extend(literals(node))
            for name in variables(node):
                self.literals.extend(self.values.get(name, ()))


def find_wording(source: str) -> dict[str, list[str]]:
    """Return the tests of a module that assert wording, each with its wordy literals."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    marks = "|".join(TEXTS | {r"str\((item|caught|error)"})
    readers = {
        function.name
        for function in functions
        if not function.name.startswith("test_") and re.search(marks, ast.unparse(function))
    }
    found: dict[str, list[str]] = {}
    for function in functions:
        if function.name.startswith("test_"):
            texts = Wording(function, readers).literals
            wordy = [text for text in texts if count_words(text) >= MIN_WORDS]
            if wordy:
                found[function.name] = wordy
    return found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("^lr: got -1; expected a number over 0", 4),
        ("fedraa: dataset: FileNotFoundError: records.csv", 0),
        (r"^model: .*Linear .*fedraa\.lora\(model\)$", 1),
        ("did you mean 'local_steps' or --local-epochs?", 4),
        ("import sys; print({} & set(sys.modules))", 0),
    ],
)
def test_count_words_counts_no_names(text: str, words: int) -> None:
    assert count_words(text) == words


SOURCE = """
import pytest

def printed(capsys):
    return capsys.readouterr().out

@pytest.mark.parametrize(("value", "said"), [(1, "it is much too small"), (2, "two")])
def test_match_of_a_parameter(value, said):
    with pytest.raises(ValueError, match=said):
        run(value)

def test_error_text():
    with pytest.raises(ValueError) as caught:
        run()
    text = str(caught.value)
    assert "it is much too small" in text

def test_variable(capsys):
    sentence = f"it is {3} much too small"
    assert printed(capsys) == sentence

def test_names():
    with refuses("lr", "it is much too small"):
        run()

def test_text_of_no_message():
    assert read() == "it is much too small"

def test_names_and_numbers(capsys):
    assert "fedavg 3 runs/x" in capsys.readouterr().out
"""


def test_find_wording_follows_parameters_variables_and_functions() -> None:
    assert list(find_wording(SOURCE)) == ["test_match_of_a_parameter", "test_error_text", "test_variable", "test_names"]


def test_at_most_40_tests_assert_wording() -> None:
    found = {
        f"{path.relative_to(TESTS)}::{test}": texts
        for path in sorted(TESTS.rglob("test_*.py"))
        for test, texts in find_wording(path.read_text()).items()
    }
    assert len(found) <= MAX_TESTS, "\n".join(f"{test}: {texts}" for test, texts in found.items())
