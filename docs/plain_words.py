"""Check the words of the code and of the pages. `make lint` runs it.

    python docs/plain_words.py          print every violation as path:line, and exit 1 if there is one

Rule: the words come from ``docs/glossary.md``, from the words in code style of its table "Words that are not used".
That table also lists the files in which a word is allowed, with the reason. This script checks:

- names that the code defines, docstrings, comments and strings: no such word. Quotations in code style are skipped;
- pages: no such word outside of code, and prose is wrapped at 100 columns. ruff limits docstrings and code to 120;
- names of classes: a noun, and one public class per name;
- docstrings: the first sentence is a statement with at least two words of content.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Final, TypeAlias

Definition: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef

WIDTH: Final = 100
GLOSSARY: Final = Path("docs/glossary.md")
SECTION: Final = "## Words that are not used"

NOUNS: Final[Mapping[str, str]] = {
    "Committable": "a noun in Flink",
    "Table": "a noun",
    "Finding": "a noun",
    "Partitioning": "a noun",
    "Windowed": "the name in Kafka Streams, for a value with its window",
    "Fenced": "errors are named after what the caller must do next",
    "Retryable": "errors are named after what the caller must do next",
    "Fatal": "errors are named after what the caller must do next",
}
"""Class names of one word that are allowed although they look like an adjective or a participle, with the reason."""
MODIFIER: Final = re.compile(
    r"_?(\w+(ed|ing|able|ible|ful|less|ous)|Met|Held|Told|Said|Sent|Kept|Lost|Left|Found|Made|Done|Gone|Begun|Known"
    r"|Taken|Given|Written|Seen|Fatal|Recent|Latest|Newest|Oldest|Whole|Late|Due|Idle|Ready|Dead|Alive|Open|Own)"
)
OPENINGS: Final = re.compile(r"(What|Which|Whether|Why|How|Where|When|Who|Whose|Whom|(In|By|Of|From|To|For) wh\w+)\b")
FUNCTION_WORDS: Final = frozenset(
    re.findall(
        r"\w+",
        """
        a an the it its itself they them their this that these those one ones some any all each every both none nothing
        other others another such same so of in on at by for from to with without as than into out up and or but if is
        are be was were has have had do does did not no only also again then there here whichever whatever whoever
        """,
    )
)
"""Words that carry no content: a first sentence needs two others."""

_CODE: Final = re.compile(r"``[^`]+``|`[^`]+`")
_UNREAD: Final = re.compile(rf"{_CODE.pattern}|\]\([^)]*\)|<!--.*?-->", re.DOTALL)
_FENCE: Final = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
_INNER_CAPITAL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|_")


@dataclass(frozen=True, order=True)
class Violation:
    """A place that needs other words: ``path:line: found — remedy``."""

    path: str
    line: int
    found: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found} — {self.remedy}"


@dataclass(frozen=True)
class BannedWord:
    """A word or phrase that is not used, its replacement, and the files in which it is allowed, as globs."""

    instead: str
    allowed: tuple[str, ...]


class WordList:
    """The words of the glossary's table, found in any text."""

    def __init__(self, glossary: str) -> None:
        self._words = dict(_rows(glossary))
        if not self._words:
            raise ValueError(f"{GLOSSARY}: the section '{SECTION[3:]}' has no words in code style")
        phrases = "|".join(re.escape(phrase) for phrase in sorted(self._words, key=len, reverse=True))
        spread = phrases.replace(r"\ ", r"[\s#]+")  # over two lines, also of a comment
        self._pattern = re.compile(rf"\b({spread})\b", re.IGNORECASE)

    def find(self, path: str, line: int, text: str) -> Iterator[Violation]:
        """Yield the banned words of a text that begins at a line. Words within names count."""
        text = _INNER_CAPITAL.sub(" ", text)
        for match in self._pattern.finditer(text):
            word = " ".join(re.split(r"[\s#]+", match[0].lower()))
            entry = self._words[word]
            if not any(fnmatch(path, allowed) for allowed in entry.allowed):
                yield Violation(path, line + text.count("\n", 0, match.start()), word, f"write {entry.instead} instead")


def _rows(glossary: str) -> Iterator[tuple[str, BannedWord]]:
    """Yield the words in code style of the table's first column."""
    section = glossary.partition(f"{SECTION}\n")[2].partition("\n## ")[0]
    for line in section.splitlines():
        if line.startswith("|"):
            words, instead, allowed = (cell.strip() for cell in line.strip("|").split("|"))
            for word in re.findall(r"`([^`]+)`", words):
                yield word, BannedWord(instead, tuple(re.findall(r"`([^`]+)`", allowed)))


# ---------------------------------------------------------------- code


def check_module(path: str, source: str, tree: ast.Module, words: WordList) -> Iterator[Violation]:
    """Yield the violations of one module, except for names that other modules use too."""
    for node in definitions(tree):
        if isinstance(node, ast.ClassDef) and _is_modifier(node.name):
            yield Violation(path, node.lineno, f"class {node.name}", "write a noun instead: say what the object is")
        doc = ast.get_docstring(node)
        if doc is not None and (remedy := docstring_remedy(doc)):
            yield Violation(path, node.body[0].lineno, f"docstring {doc.splitlines()[0]!r}", remedy)
    if any(words.find(path, 1, source)):  # to collect the texts takes much longer than to search all of the file
        for line, text in texts(source, tree):
            yield from words.find(path, line, text)


def definitions(node: ast.AST) -> Iterator[Definition]:
    """Yield the module, its classes and its functions. Expressions, which are most of the tree, have none."""
    if isinstance(node, Definition):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield from definitions(child)


def _is_modifier(name: str) -> bool:
    return bool(re.fullmatch(r"_?[A-Z][a-z]+", name) and MODIFIER.fullmatch(name)) and name.lstrip("_") not in NOUNS


def docstring_remedy(doc: str) -> str | None:
    """Return what to write instead of a docstring's first sentence, or None if it is a statement with content."""
    first = re.split(r"(?<=[.?!])\s+(?=[A-Z`])", " ".join(doc.split()), maxsplit=1)[0]
    if first.endswith("?") or OPENINGS.match(first):
        return "write a statement instead: what the object is, or what the function does"
    spoken = re.findall(r"``[^`]+``|[\w'’:.-]*\w", first)
    if sum(word.lower() not in FUNCTION_WORDS for word in spoken) < 2:
        return "write a sentence with a noun instead, which is clear without the name"
    return None


def texts(source: str, tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the names that a module defines, its strings, its docstrings without quotations, and its comments."""
    docstrings: set[ast.AST] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text)) as doc):
                docstrings.add(doc)
                yield doc.lineno, _without(_CODE, text)
            case ast.Constant(value=str(text)) if node not in docstrings:
                yield node.lineno, text
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name
    yield from comments(source)


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield the comments; consecutive lines are one comment."""
    first, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] != first + len(lines):
                yield first, "\n".join(lines)
                lines = []
            first = first if lines else token.start[0]
            lines.append(token.string)
    yield first, "\n".join(lines)


def _without(pattern: re.Pattern[str], text: str) -> str:
    """Replace each match by a comma, which no phrase spans, and by as many line ends as it has."""
    return pattern.sub(lambda match: "," + "\n" * match[0].count("\n"), text)


def check_class_names(modules: Mapping[str, ast.Module]) -> Iterator[Violation]:
    """Yield the public classes whose name another class has, too."""
    first: dict[str, str] = {}
    for path, tree in modules.items():
        for node in definitions(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                other = first.setdefault(node.name, f"{path}:{node.lineno}")
                if other != f"{path}:{node.lineno}":
                    remedy = f"write another name instead: {other} has this one"
                    yield Violation(path, node.lineno, f"class {node.name}", remedy)


# ---------------------------------------------------------------- pages


def check_page(path: str, text: str, words: WordList) -> Iterator[Violation]:
    """Yield the violations of one page. Code, targets of links, tables, headings and pictures may be long."""
    text = _without(_FENCE, text)
    yield from words.find(path, 1, _without(_UNREAD, text))
    for number, line in enumerate(text.splitlines(), 1):
        if len(_UNREAD.sub("", line)) > WIDTH and not line.lstrip().startswith(("|", "#", "![")):
            yield Violation(path, number, f"{len(line)} columns", f"write at most {WIDTH} instead")


# ---------------------------------------------------------------- the project


def violations(root: Path) -> list[Violation]:
    """Return all violations of the packages and pages below ``root``, by path and line."""
    root = root.resolve()
    words = WordList((root / GLOSSARY).read_text(encoding="utf-8"))
    sources = {str(path.relative_to(root)): path.read_text(encoding="utf-8") for path in _files(root)}
    modules = {path: ast.parse(source) for path, source in sources.items() if path.endswith(".py")}
    found = list(check_class_names(modules))
    for path, source in sources.items():
        if path in modules:
            found += check_module(path, source, modules[path], words)
        else:
            found += check_page(path, source, words)
    return sorted(found)


def _files(root: Path) -> Sequence[Path]:
    """List modules and pages. ``kafka_eos/connectors`` is a link, so its files would come twice."""
    globs = ("kafka_eos/**/*.py", "connectors/**/*.py", "*.md", "docs/**/*.md")
    return sorted({path.resolve() for glob in globs for path in root.glob(glob)})


def main() -> int:
    """Print the violations of this project, and return the exit code."""
    found = violations(Path(__file__).parents[1])
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
