"""Tolerances come from the helper or carry a reason: read from the syntax trees of all tests."""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
COMPARING = {"assert_allclose", "assert_close", "allclose", "isclose", "approx", "gradcheck", "gradgradcheck"}
OWN_RTOL = {"assert_allclose", "allclose", "isclose"}  # given atol alone, these add 1e-7 or 1e-5 of the value
NAMES = {"rtol", "atol", "rel", "abs", "rel_tol", "abs_tol"}
SMALL = 0.01  # a number up to this on one side of a comparison is a tolerance, or has to say what else it is


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


class Tolerances:
    """The bare ones of a module: numbers without a name of the helper and without a comment."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        tokens = tokenize.generate_tokens(io.StringIO(source).readline)
        self.comments = {t.start[0] for t in tokens if t.type == tokenize.COMMENT and "noqa" not in t.string}
        assigned = (node for node in self.tree.body if isinstance(node, ast.Assign))
        self.constants = {ast.unparse(node.targets[0]): node.value for node in assigned}

    def bare(self) -> list[int]:
        """The lines, where neither they nor the line above them or above their statement has a comment."""
        found = set()
        for statement in ast.walk(self.tree):
            if isinstance(statement, ast.stmt):
                lines = (number.lineno for part in parts(statement) for number in self.numbers(part))
                found |= {line for line in lines if not self.comments & {line, line - 1, statement.lineno - 1}}
        return sorted(found)

    def numbers(self, node: ast.AST) -> Iterator[ast.expr]:
        """The tolerances of a comparison that are plain numbers."""
        if isinstance(node, ast.Compare):
            for side in (node.left, *node.comparators):
                yield from self.literals(side, SMALL * 1.001)
        elif isinstance(node, ast.Call) and called(node) == "tolerance":  # a factor has a name or a comment
            yield from (k.value for k in node.keywords if k.arg == "amplified" and isinstance(k.value, ast.Constant))
        elif isinstance(node, ast.Call) and called(node) in COMPARING:
            given = {k.arg: k.value for k in node.keywords}
            for name, value in given.items():
                if name is None or name in NAMES:
                    yield from self.literals(value, 1.0)
            if called(node) == "approx":
                yield from (number for value in node.args[1:] for number in self.literals(value, 1.0))
            if called(node) in OWN_RTOL and "atol" in given and "rtol" not in given:
                yield given["atol"]

    def literals(self, node: ast.expr, below: float) -> Iterator[ast.expr]:
        """The numbers in (0, below) of a sum or a product; what stands inside a call is that call's affair."""
        if isinstance(node, ast.Name) and node.id in self.constants:
            value = self.constants[node.id]
            # a constant gives its reason where it is defined
            yield from () if value.lineno in self.comments else self.literals(value, below)
        for part in (*filter(None, (getattr(node, name, None) for name in ("operand", "left", "right"))),):
            yield from self.literals(part, below)
        for part in node.values if isinstance(node, ast.Dict) else ():
            yield from self.literals(part, below)
        if isinstance(node, ast.Constant) and isinstance(node.value, float) and 0.0 < node.value < below:
            yield node


def parts(node: ast.AST) -> Iterator[ast.AST]:
    """What belongs to a statement, without the statements inside it."""
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.stmt):
            yield child
            yield from parts(child)


BARE = """
assert a == pytest.approx(b, rel=1e-9)
assert a == pytest.approx(b, 1e-9)
np.testing.assert_allclose(a, b, rtol=0, atol=1e-9 * size)
np.testing.assert_allclose(a, b, atol=tolerance())
assert abs(a - b) < 1e-9 * (1.0 + size)
assert a == pytest.approx(b, rel=tolerance(amplified=1e5))
"""
GOOD = """
assert a == pytest.approx(b, rel=1e-9)  # the series ends after nine terms
assert a == pytest.approx(b, rel=tolerance(amplified=condition))
np.testing.assert_allclose(a, b, rtol=0, atol=10.0 * ulps())
assert 0.5 < a <= 1.0
twin = nsd.match(deq, tol=1e-4)
CLOSE = 1e-9  # what was asked for
assert abs(a - b) < CLOSE * size
"""


def test_a_bare_number_is_seen_and_one_with_a_reason_is_left_alone():
    assert Tolerances(BARE).bare() == list(range(2, 8))  # assert_allclose without rtol adds 1e-7 of b
    assert Tolerances(GOOD).bare() == []
    assert Tolerances("CLOSE = 1e-9\nassert abs(a - b) < CLOSE").bare() == [1]


def test_tolerances_come_from_the_helper_or_carry_a_reason():
    lines = {str(path.relative_to(TESTS)): Tolerances(path.read_text()).bare() for path in TESTS.rglob("*.py")}
    assert {path: found for path, found in lines.items() if found} == {}, "take them from helpers.py, or say why"
