"""What functions and classes of the library may be called without: arguments and fields with a default, by name.

Rule: an argument counts as optional only if it has a default wherever a function or class of that name has it, so that
to leave it out raises no TypeError.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("kafka_eos", "connectors")

Optional = Mapping[str, Mapping[str, frozenset[str]]]
"""By the name of a function or class, its optional arguments and their defaults, as they are written."""


@cache
def of_library() -> Optional:
    """Of all functions and classes of the library."""
    return optional_arguments(ast.parse((ROOT / file).read_text(encoding="utf-8")) for file in files())


def files() -> list[str]:
    """All sources of the library, by their path from the root; those behind a link to a folder only once."""
    paths = (path for source in SOURCES for path in (ROOT / source).rglob("*.py"))
    return sorted(path.relative_to(ROOT).as_posix() for path in paths if path.resolve() == path)


def optional_arguments(trees: Iterable[ast.Module]) -> Optional:
    """Of all functions and classes of these sources."""
    defaults: dict[str, dict[str, list[str | None]]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            for name, argument, default in _arguments(node):
                defaults.setdefault(name, {}).setdefault(argument, []).append(default)
    return {
        name: {argument: frozenset(filter(None, texts)) for argument, texts in arguments.items() if None not in texts}
        for name, arguments in defaults.items()
    }


def _arguments(node: ast.AST) -> Iterator[tuple[str, str, str | None]]:
    """The name of the callable, an argument of it, and its default; None if it has none."""
    match node:
        case ast.ClassDef(name=name, body=body):
            for child in body:
                match child:
                    case ast.AnnAssign(ast.Name(field), value=value):
                        yield name, field, _text(value)
                    case ast.FunctionDef(name="__init__", args=arguments):
                        yield from ((name, *each) for each in _defaults(arguments))
        case ast.FunctionDef(name=name, args=arguments) | ast.AsyncFunctionDef(name=name, args=arguments):
            yield from ((name, *each) for each in _defaults(arguments))


def _defaults(arguments: ast.arguments) -> Iterator[tuple[str, str | None]]:
    positional = [*arguments.posonlyargs, *arguments.args]
    without = len(positional) - len(arguments.defaults)
    for argument, default in zip(positional, [*[None] * without, *arguments.defaults], strict=True):
        yield argument.arg, _text(default)
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield argument.arg, _text(default)


def _text(default: ast.expr | None) -> str | None:
    return None if default is None else ast.unparse(default)
