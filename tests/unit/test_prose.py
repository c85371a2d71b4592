"""Sentences that somebody whose first language is not English has to read: none is longer than 35 words."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.parsing import parse

ROOT = Path(__file__).parents[2]
LONGEST = 35

PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.name != "CHANGELOG.md"]
MODULES = sorted((ROOT / "ignis").rglob("*.py"))
CYTHON = sorted(path for suffix in ("pyx", "pxd", "pxi", "pyi") for path in (ROOT / "ignis").rglob(f"*.{suffix}"))
HEADERS_AND_SOURCES = sorted(path for suffix in ("c", "h") for path in (ROOT / "csrc").rglob(f"*.{suffix}"))

# What a lexer of Python or Cython has to tell apart to find the comments.
PYTHON_LEXEMES = re.compile(
    r'(?P<long>"""(?:\\.|[^\\])*?""")|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|(?P<comment>\#[^\n]*)', re.DOTALL
)
C_LEXEMES = re.compile(r'(?P<comment>/\*.*?\*/|//[^\n]*)|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.DOTALL)

# A list's item, a heading and an empty line end what stands before them.
PARAGRAPH = re.compile(r"\n\s*\n|\n\s*(?:[-*]|\d+\.)\s+|\n\s*#+ ")
SENTENCE = re.compile(r"(?<=[.!?])[\"')*`\]]*\s+(?=[A-Z`\"'(*\[])|(?<=[:;])\s+")
MARK = re.compile(r"\[T\d+\]")
# A line of a table or a drawing, as docstrings and comments have them: columns, or far to the right.
LAID_OUT = re.compile(r"^ {8,}\S|\S {2,}\S")


def words(sentence: str) -> int:
    return sum(1 for one in sentence.split() if re.search(r"\w", one))


def sentences(text: str) -> Iterator[str]:
    """The sentences of running text; blocks of code and laid-out lines are none."""
    text = re.sub(r"^ *(```|~~~).*?^ *\1", "\n", text, flags=re.DOTALL | re.MULTILINE)
    text = MARK.sub("", re.sub(r"^ *> ?", "", text, flags=re.MULTILINE))
    cells = [cell for row in re.findall(r"^\s*\|(.*)\|\s*$", text, re.MULTILINE) for cell in row.split("|")]
    text = re.sub(r"^\s*\|.*$", "\n", text, flags=re.MULTILINE)
    lines = text.splitlines()
    cells += [cell for line in lines if LAID_OUT.search(line) for cell in re.split(r" {2,}", line.strip())]
    text = "\n".join("" if LAID_OUT.search(line) else line for line in lines)
    for paragraph in [*PARAGRAPH.split("\n" + text), *cells]:
        yield from SENTENCE.split(" ".join(paragraph.split()))


def too_long(text: str) -> list[str]:
    return [f"{words(one)} words: {one}" for one in sentences(text) if words(one) > LONGEST]


def blocks_of_comments(source: str, lexemes: re.Pattern[str]) -> Iterator[tuple[int, str]]:
    """The comments with their lines; those that stand alone on lines that follow each other are one text."""
    gathered: list[str] = []
    first = last = 0
    for found in lexemes.finditer(source):
        if not found.groupdict().get("comment"):
            continue
        line = source.count("\n", 0, found.start()) + 1
        alone = not source[source.rfind("\n", 0, found.start()) + 1 : found.start()].strip()
        if gathered and not (alone and line == last + 1):
            yield first, "\n".join(gathered)
            gathered = []
        if not gathered:
            first = line
        gathered.append(bare(found["comment"]))
        last = line + found["comment"].count("\n")
        if not alone:
            yield first, "\n".join(gathered)
            gathered = []
    if gathered:
        yield first, "\n".join(gathered)


def bare(comment: str) -> str:
    if comment.startswith("#"):
        return comment.lstrip("#").removeprefix(" ")
    if comment.startswith("//"):
        return comment.lstrip("/").removeprefix(" ")
    return re.sub(r"^[ \t]*\*(?=\s|$) ?", "", comment[2:-2], flags=re.MULTILINE)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """All of a module, in any depth. `ast.walk` looks at every expression too, which takes ten times as long."""
    for one in body:
        yield one
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            for inner in getattr(one, name, ()):
                yield from statements([inner] if isinstance(inner, ast.stmt) else inner.body)


def docstrings(module: ast.Module) -> Iterator[tuple[int, str]]:
    for node in (module, *statements(module.body)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text


def error_texts(module: ast.Module) -> Iterator[tuple[int, str]]:
    """What is given to an exception where it is raised; what is put in counts as one word."""
    for node in statements(module.body):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            for argument in node.exc.args:
                text = literal(argument)
                if text:
                    yield node.lineno, text


def literal(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(part) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return "x"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return literal(node.left) + literal(node.right)
    return ""


def faults(path: Path) -> list[str]:
    """A line for each sentence of the file that is too long."""
    source = path.read_text("utf-8")
    texts: list[tuple[int, str]] = []
    if path.suffix == ".md":
        texts = [(1, source)]
    elif path.suffix == ".py":
        module = parse(source)
        texts = [*docstrings(module), *error_texts(module), *blocks_of_comments(source, PYTHON_LEXEMES)]
    elif path.suffix in (".c", ".h"):
        texts = list(blocks_of_comments(source, C_LEXEMES))
    else:
        texts = list(blocks_of_comments(source, PYTHON_LEXEMES))
        texts += [
            (source.count("\n", 0, found.start()) + 1, inspect.cleandoc(found["long"][3:-3]))
            for found in PYTHON_LEXEMES.finditer(source)
            if found["long"]
        ]
    where = path.relative_to(ROOT)
    return [f"{where}:{line}: {fault}" for line, text in texts for fault in too_long(text)]


@pytest.mark.parametrize("files", [PAGES, MODULES, CYTHON, HEADERS_AND_SOURCES], ids=["pages", "python", "cython", "c"])
def test_no_sentence_is_too_long(files: list[Path]) -> None:
    # An installed package has no sources in C or Cython beside it, but the tests of a repository have.
    found = [fault for path in files for fault in faults(path)]
    assert not found, "\n".join(found)


LONG = "a word " * 17 + "and two"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", f"# Title\n\nFirst. {LONG}.\n"),
        ("a.md", f"> Quoted. [T1] {LONG}. [T2]\n"),
        ("a.md", f"| a | b |\n| --- | --- |\n| x | Short. {LONG} |\n"),
        ("a.md", f"* An item.\n* {LONG}\n"),
        ("a.py", f'"""First.\n\n{LONG}\n"""\n'),
        ("a.py", f'class A:\n    """Short."""\n\n    def f(self):\n        """{LONG}"""\n'),
        ("a.py", f"x = 1  # short\n# {LONG[:60]}\n# {LONG[60:]}\n"),
        ("a.py", f'raise ValueError(f"{{x}} {LONG}")\n'),
        ("a.pyx", f'cdef int x\ncdef class A:\n    """{LONG}"""\n'),
        ("a.pyx", f'x = b"#"  # {LONG}\n'),
        ("a.c", f"/* Short.\n * {LONG}\n */\n"),
        ("a.h", f"int a; /* {LONG} */\n"),
    ],
)
def test_the_gate_can_fail(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / name
    path.write_text(text)
    assert len(faults(path)) == 1, faults(path)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.md", f"```python\n{LONG}\n```\n"),
        ("a.md", f"{LONG[:90]}: {LONG[:90]}. A {LONG[:90]}\n\n* {LONG[:90]}\n"),
        ("a.md", f"* {LONG[:100]}\n* {LONG[:100]}\n\n| {LONG[:100]} | {LONG[:100]} |\n"),
        (
            "a.py",
            f'"""Two columns.\n\n    name      {LONG[:60]}\n    {" " * 10}{LONG[:60]}\n    other     {LONG[:60]}\n"""\n',
        ),
        ("a.py", f'x = 1  # {LONG[:100]}\ny = "# {LONG}"  # {LONG[:100]}\n'),
        ("a.c", f'char *x = "/* {LONG} */";  /* {LONG[:100]} */\nint y; /* {LONG[:100]} */\n'),
    ],
)
def test_what_is_no_sentence_is_left_out(name: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    path = tmp_path / name
    path.write_text(text)
    assert faults(path) == []


NO_WORD = re.compile(r"(?:Of (?:one|an?|the|`)|See (?:the module|`))")


def silent_classes(module: ast.Module) -> list[str]:
    """Classes whose docstring begins with whose the object is, or sends the reader elsewhere."""
    classes = [node for node in statements(module.body) if isinstance(node, ast.ClassDef)]
    return [node.name for node in classes if NO_WORD.match(ast.get_docstring(node) or "")]


def test_a_class_says_what_it_does() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}" for path in MODULES for name in silent_classes(parse(path.read_bytes()))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("docstring", ["Of one session.", "See the module. Thread-safe.", "See `Pool`."])
def test_a_class_that_says_nothing_is_found(docstring: str) -> None:
    assert silent_classes(parse(f'class A:\n    """{docstring}"""\n')) == ["A"]
