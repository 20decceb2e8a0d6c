"""The lint of words refuses each kind of violation, and nothing else, in a small project with one of them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
GLOSSARY = """\
# Glossary

## Words that are not used

| not used | used instead | allowed |
|---|---|---|
| `heir`, `heirs` | successor | `kafka_eos/stored.py`: the name is stored |
| `under way` | in-flight | |
| place | location, or partition | |

## Terms

Every page may use `heir` as a quotation.
"""
CLEAN = '''\
"""The rows of one epoch, and ``heir`` as a quotation."""


class PendingRows:
    """Rows that wait at some place."""

    def count(self) -> int:
        """Return how many rows wait. What follows may be a question?"""
        return 0


class RowError(Exception):
    pass
'''


@pytest.fixture(scope="module")
def lint() -> ModuleType:
    spec = importlib.util.spec_from_file_location("plain_words", ROOT / "docs/plain_words.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project without a violation. A link leads to ``connectors``, as in this one."""
    for path, text in {
        "docs/glossary.md": GLOSSARY,
        "docs/page.md": "# A page\n\nOne short line.\n",
        "README.md": "# A project\n",
        "kafka_eos/rows.py": CLEAN,
        "connectors/sink.py": '"""The sink of a table."""\n\n\nclass TableSink:\n    pass\n',
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "kafka_eos/connectors").symlink_to("../connectors")
    return tmp_path


def found(lint: ModuleType, project: Path, path: str, text: str) -> list[str]:
    (project / path).write_text(text)
    return [str(each) for each in lint.violations(project)]


def test_a_project_in_plain_words_passes(lint: ModuleType, project: Path) -> None:
    assert lint.violations(project) == []


@pytest.mark.parametrize(
    "code",
    [
        "class TheHeir:\n    pass\n",
        "def find_heirs() -> None: ...\n",
        "def run(heir: int) -> None: ...\n",
        "_heir = 3\n",
        "self.heir_of = 3\n",
        "# it waits for its heir\n",
        "x = 3  # the\n# heir\n",
        'raise ValueError(f"{x} has an heir")\n',
        'KEY = "heir_of"\n',
        '"""The rows of an\nheir."""\n',
        'X = 3\n"""The number of heirs."""\n',
    ],
)
def test_a_banned_word_is_refused_in_code(lint: ModuleType, project: Path, code: str) -> None:
    line = next(n for n, text in enumerate(code.splitlines(), 1) if "heir" in text.lower())
    word = "heirs" if "heirs" in code else "heir"

    assert found(lint, project, "kafka_eos/new.py", code) == [
        f"kafka_eos/new.py:{line}: {word} — write successor instead"
    ]


@pytest.mark.parametrize("code", ["# rows under\n# way\n", '"""The rows under\nway."""\n', "rows_under_way = 3\n"])
def test_a_phrase_is_found_over_two_lines_and_in_a_name(lint: ModuleType, project: Path, code: str) -> None:
    assert found(lint, project, "kafka_eos/new.py", code) == ["kafka_eos/new.py:1: under way — write in-flight instead"]


def test_a_name_of_another_module_may_be_used(lint: ModuleType, project: Path) -> None:
    assert found(lint, project, "kafka_eos/new.py", "print(other.heir, heir)\n") == []


def test_a_word_is_allowed_in_the_files_that_the_table_names(lint: ModuleType, project: Path) -> None:
    assert found(lint, project, "kafka_eos/stored.py", "heir = 3\n") == []


@pytest.mark.parametrize("path", ["README.md", "docs/page.md", "docs/decisions.md"])
def test_a_banned_word_is_refused_on_a_page(lint: ModuleType, project: Path, path: str) -> None:
    text = "# A page\n\n```text\nheir\n```\n\nOne `heir`, [one](heir.md), one\nheir.\n"

    assert found(lint, project, path, text) == [f"{path}:8: heir — write successor instead"]


@pytest.mark.parametrize("name", ["Held", "_Asking", "Legible", "Refused", "Newest"])
def test_a_class_without_a_noun_is_refused(lint: ModuleType, project: Path, name: str) -> None:
    (said,) = found(lint, project, "connectors/sink.py", f"class {name}:\n    pass\n")

    assert said.startswith(f"connectors/sink.py:1: class {name} — write a noun instead")


@pytest.mark.parametrize("name", ["HeldRows", "Table", "_Committable", "Fenced", "Request", "RowsHeld"])
def test_a_class_with_a_noun_passes(lint: ModuleType, project: Path, name: str) -> None:
    assert found(lint, project, "connectors/sink.py", f"class {name}:\n    pass\n") == []


def test_two_public_classes_of_one_name_are_refused(lint: ModuleType, project: Path) -> None:
    text = "class PendingRows:\n    pass\n\n\nclass _Rows:\n    pass\n"
    (project / "kafka_eos/private.py").write_text("class _Rows:\n    pass\n")
    (said,) = found(lint, project, "connectors/sink.py", text)

    assert said == (
        "kafka_eos/rows.py:4: class PendingRows — write another name instead: connectors/sink.py:1 has this one"
    )


@pytest.mark.parametrize(
    "doc",
    [
        "Rows.",
        "The same.",
        "In whichever time. It is not known before the start.",
        "One of them.",
        "Return it.",
        "What became of the rows.",
        "Which rows met a value.",
        "Why no state is known.",
        "By which partitioner the rows were divided.",
        "Do splits wait for slower ones?",
        "Are rows\n    of ``key`` left? False if not.",
    ],
)
def test_a_docstring_that_begins_with_no_statement_is_refused(lint: ModuleType, project: Path, doc: str) -> None:
    (said,) = found(lint, project, "kafka_eos/new.py", f'def run() -> None:\n    """{doc}"""\n')

    assert said.startswith(f"kafka_eos/new.py:2: docstring {doc.splitlines()[0]!r} — write a s")


@pytest.mark.parametrize(
    "doc", ["Return ``rows``.", "Avro codec.", "Whatever, in seconds: the longest time.", "Send rows, e.g. to Kafka."]
)
def test_a_docstring_that_says_something_passes(lint: ModuleType, project: Path, doc: str) -> None:
    assert found(lint, project, "kafka_eos/new.py", f'def run() -> None:\n    """{doc}"""\n') == []


def test_a_long_line_of_prose_is_refused(lint: ModuleType, project: Path) -> None:
    assert found(lint, project, "docs/page.md", f"# A page\n\n{'word ' * 25}\n") == [
        "docs/page.md:3: 125 columns — write at most 100 instead"
    ]


@pytest.mark.parametrize(
    "line",
    [
        f"| {'word ' * 25} |",
        f"# {'word ' * 25}",
        f"```text\n{'word ' * 25}\n```",
        f"a [link](page.md#{'x' * 100})",
        f"`{'word ' * 25}`",
        "word " * 20,
    ],
    ids=["table", "heading", "block of code", "link", "code", "100 columns"],
)
def test_what_cannot_be_wrapped_may_be_long(lint: ModuleType, project: Path, line: str) -> None:
    assert found(lint, project, "docs/page.md", f"# A page\n\n{line}\n") == []


def test_a_glossary_without_the_table_is_refused(lint: ModuleType, project: Path) -> None:
    with pytest.raises(ValueError, match="'Words that are not used' has no words"):
        found(lint, project, "docs/glossary.md", "# Glossary\n")


def test_the_command_prints_each_violation_and_fails(
    lint: ModuleType, project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lint, "__file__", str(project / "docs/plain_words.py"))
    assert (lint.main(), capsys.readouterr().out) == (0, "")

    (project / "kafka_eos/new.py").write_text("heir, heirs = 3, 4\n")

    assert (lint.main(), capsys.readouterr().out) == (
        1,
        "kafka_eos/new.py:1: heir — write successor instead\nkafka_eos/new.py:1: heirs — write successor instead\n",
    )
