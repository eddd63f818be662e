"""The report on the house counts what is there."""

from __future__ import annotations

from benchmarks import house


def test_the_report_counts():
    text = house.report()
    for words in ("Python: ", "kernels", "JavaScript, HTML and CSS", "Functions: ", "more than ten", "Public names: "):
        assert words in text
    lines = sum(text.count("\n") for text in house.files(*house.PAGE).values())
    assert f"JavaScript, HTML and CSS: {lines:,} lines" in text
    assert lines <= 1000  # the page draws; Python computes


def test_questions_of_kinds_are_seen():
    text = "isinstance(x, nsd.DEQ)\nisinstance(x, int)\nisinstance(x, Dense | str)\nisinstance(x, (int, ConvDEQ))\n"
    assert house.kinds_asked(text) == [1, 3, 4]


def test_functions_are_measured_without_their_docstring():
    text = 'def f(self, a, *, b=1):\n    """Say.\n\n    More.\n    """\n    return a\n'
    assert [one[1:] for one in house.functions("file.py", text)] == [(2, 2)]
