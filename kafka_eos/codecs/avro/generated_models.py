"""Generation of pydantic models, as Python text, from an Avro schema: a start for reading a topic of others.

Pure. Rule: the models yield an equivalent schema; a type without a counterpart is a ValueError that names the field.
Rule: the author of the schema is not trusted, and the text is run. Nothing of the schema is in it except names,
numbers and literals.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from fastavro import validate

from kafka_eos.codecs.avro.expansion import Names
from kafka_eos.codecs.avro.foreign_schemas import parse_schema

_PLAIN: Final[Mapping[str, str]] = {
    "null": "None", "boolean": "bool", "int": "int", "long": "int", "float": "float", "double": "float",
    "string": "str", "bytes": "bytes",
}  # fmt: skip
_LOGICAL: Final[Mapping[str, str]] = {
    "timestamp-micros": "datetime.datetime",
    "timestamp-millis": "datetime.datetime",
    "date": "datetime.date",
    "uuid": "uuid.UUID",
}
_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
"""A name of Avro. The parser checks those of symbols only."""
_IMPORTS: Final = (
    ("datetime.", "import datetime"),
    ("enum.", "import enum"),
    ("uuid.", "import uuid"),
    ("Decimal", "from decimal import Decimal"),
    ("Annotated", "from typing import Annotated"),
)


def as_models(schema: Any, named: list[Any]) -> str:
    """Return the models of a record schema. Raises ValueError if it is not a record.

    ``named``: the schemas that it refers to, dependencies first.
    """
    found, names = parse_schema(schema, named)
    if not isinstance(found, dict) or found["type"] not in ("record", "error"):
        raise ValueError("it is not a record")
    models = _ModelWriter(names)
    models.type(found, found["name"])
    text = "\n\n\n".join([*models.classes, *models.rebuilt()])
    imports = [line for word, line in _IMPORTS if word in text]
    pydantic = "from pydantic import BaseModel, Field" if "Field(" in text else "from pydantic import BaseModel"
    first = [*(["\n".join(sorted(imports, key=lambda line: line.startswith("from")))] if imports else []), pydantic]
    return "\n\n".join(["from __future__ import annotations", *first]) + "\n\n\n" + text + "\n"


class _ModelWriter:
    def __init__(self, names: Names) -> None:
        self._names = names
        self.classes: list[str] = []
        self._done: dict[str, str] = {}
        """Classes by the full names of their types."""
        self._open: list[str] = []
        self._late: set[str] = set()

    def rebuilt(self) -> Iterator[str]:
        """Yield the statements behind classes that name later ones."""
        if self._late:
            yield "\n".join(f"{name}.model_rebuild()" for name in sorted(self._late))

    def type(self, schema: Any, at: str) -> str:
        """Return a type as an annotation."""
        if isinstance(schema, list):
            return " | ".join(self.type(each, at) for each in schema)
        if isinstance(schema, str):
            return _PLAIN[schema] if schema in _PLAIN else self.type(self._names[schema], at)
        match schema["type"]:
            case "record" | "error" | "enum" as kind:
                return self._class(schema, kind == "enum", at)
            case "array":
                return f"list[{self.type(schema['items'], f'{at}[]')}]"
            case "map":
                return f"dict[str, {self.type(schema['values'], f'{at}{{}}')}]"
            case "bytes" if "precision" in schema:
                digits = f"max_digits={schema['precision']}, decimal_places={schema.get('scale', 0)}"
                return f"Annotated[Decimal, Field({digits})]"
            case str() as kind if kind in _PLAIN:
                return _LOGICAL.get(str(schema.get("logicalType")), _PLAIN[kind])
        raise ValueError(f"{at}: {schema['type']} has no counterpart in a model")

    def _class(self, schema: Any, is_enum: bool, at: str) -> str:
        full: str = schema["name"]
        name = full.rpartition(".")[2]
        if full in self._done:
            if full in self._open:
                self._late.update(self._done[each] for each in self._open[self._open.index(full) + 1 :])
            return name
        if name in self._done.values():
            raise ValueError(f"{at}: two of its types are called {name}")
        self._done[full] = _spoken(name, at)
        self._open.append(full)
        lines = self._members(schema) if is_enum else self._fields(schema, at)
        self._open.remove(full)
        self.classes.append("\n".join(lines))
        return name

    def _members(self, schema: Any) -> list[str]:
        symbols = [f'    {each}{"_" if keyword.iskeyword(each) else ""} = "{each}"' for each in schema["symbols"]]
        return [f"class {schema['name'].rpartition('.')[2]}(enum.Enum):", *symbols]

    def _fields(self, schema: Any, at: str) -> list[str]:
        lines = [f"class {schema['name'].rpartition('.')[2]}(BaseModel):"]
        for field in schema["fields"]:
            path = f"{at}.{field['name']}"
            declaration = f"    {_spoken(field['name'], path)}: {self.type(field['type'], path)}"
            lines.append(f"{declaration} = {self._default(field, path)}" if "default" in field else declaration)
        return lines if len(lines) > 1 else [*lines, "    pass"]

    def _default(self, field: Any, at: str) -> str:
        schema, value = field["type"], field["default"]
        first = schema[0] if isinstance(schema, list) else schema
        first = self._names.get(first, first) if isinstance(first, str) else first
        kind = first["type"] if isinstance(first, dict) else first
        if kind == "enum" and value in first["symbols"]:
            return f"{first['name'].rpartition('.')[2]}.{value}{'_' if keyword.iskeyword(value) else ''}"
        logical = isinstance(first, dict) and ("precision" in first or str(first.get("logicalType")) in _LOGICAL)
        invalid = isinstance(schema, str) and schema in _PLAIN and not validate(value, schema, raise_errors=False)
        if invalid or logical or kind in ("bytes", "record", "enum") or (kind in ("array", "map") and value):
            raise ValueError(f"{at}: the default {value!r} has no counterpart in a model: remove it")
        return repr(float(value) if kind in ("float", "double") else value)


def _spoken(name: str, at: str) -> str:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name.startswith("_"):
        raise ValueError(f"{at}: a model cannot have a field or a class that is called {name}")
    return str(name)
