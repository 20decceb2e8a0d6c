"""Parser of .proto text, as registries store it, into a ``FileDescriptorProto``.

Rule: everything that affects the encoding of values is parsed, or the file is a ValueError that names the line. The
rest is skipped: comments, services, extensions, reserved numbers, and options except ``allow_alias``. Names of types
stay as written; the descriptor pool resolves and checks them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf import text_encoding
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

_TOKEN: Final = re.compile(
    r"""(?P<gap>(?:\s+|//[^\n]*|/\*.*?\*/)+)
      |(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
      |(?P<number>(?:0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)[\w.]*)
      |(?P<word>\.?[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)
      |(?P<sign>[][{}()<>;:,=.+/-])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE: Final = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_CONTROL: Final = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}
_SCALARS: Final = {
    name: getattr(FieldDescriptorProto, f"TYPE_{name.upper()}")
    for name in (
        "double", "float", "int64", "uint64", "int32", "fixed64", "fixed32", "bool", "string", "bytes", "uint32",
        "sfixed32", "sfixed64", "sint32", "sint64",
    )
}  # fmt: skip
_LABELS: Final = {
    "optional": FieldDescriptorProto.LABEL_OPTIONAL,
    "required": FieldDescriptorProto.LABEL_REQUIRED,
    "repeated": FieldDescriptorProto.LABEL_REPEATED,
}
_OPENED: Final = {"{": "}", "[": "]", "(": ")", "<": ">"}


def parse_proto(text: str, name: str) -> FileDescriptorProto:
    """Parse .proto text. Raises ValueError with the line.

    Groups and editions are not supported, and a ValueError too.
    """
    try:
        return _Parser(text, name).file
    except RecursionError:
        raise ValueError("not a usable Protobuf schema: it is nested too deeply") from None


class _Parser:
    def __init__(self, text: str, name: str) -> None:
        self._text = text
        self._next = 0
        self._line = 1
        self._tokens = self._found()
        self._token = next(self._tokens)
        self.file = FileDescriptorProto(name=name)
        self._read_file()

    # ---------------------------------------------------------------- tokens

    def _found(self) -> Iterator[str]:
        at = 0
        while at < len(self._text):
            match = _TOKEN.match(self._text, at)
            if match is None:
                raise self._wrong(f"{self._text[at : at + 20]!r} is not understood")
            at = match.end()
            if match.lastgroup != "gap":
                yield match.group()
            self._line += match.group().count("\n")
        while True:
            yield ""

    def _wrong(self, what: str) -> ValueError:
        return ValueError(f"not a usable Protobuf schema: line {self._line}: {what}")

    def _take(self) -> str:
        token = self._token
        if not token:
            raise self._wrong("it ends too early")
        self._token = next(self._tokens)
        return token

    def _skip(self, *wanted: str) -> str:
        """Consume the next token, which must be one of these."""
        if self._token not in wanted:
            raise self._wrong(f"expected {' or '.join(wanted)}, found {self._token or 'the end'}")
        return self._take()

    def _name(self) -> str:
        token = self._take()
        while token.endswith(".") or self._token.startswith("."):
            token += self._take()  # its parts may be on several lines
        if not (token[0].isalpha() or token[0] in "_."):
            raise self._wrong(f"{token} is not a name")
        return token

    def _bytes(self) -> bytes:
        """Take one or several literals, which mean one text."""
        found = []
        while True:
            token = self._take()
            if token[0] not in "\"'":
                raise self._wrong(f"expected a string, found {token}")
            try:
                found.append(_ESCAPE.sub(_unescaped, token[1:-1].encode()))
            except (ValueError, OverflowError):
                raise self._wrong(f"{token} has an escape that is not a character") from None
            if self._token[:1] not in ("'", '"'):
                return b"".join(found)

    def _string(self) -> str:
        try:
            return self._bytes().decode()
        except UnicodeDecodeError:
            raise self._wrong("a string is not UTF-8") from None

    def _number(self) -> int:
        sign = -1 if self._token == "-" and self._take() else 1
        token = self._take()
        try:
            return sign * int(token, 8 if re.fullmatch(r"0\d+", token) else 0)
        except ValueError:
            raise self._wrong(f"{token} is not a number") from None

    def _statement(self) -> None:
        """Skip a statement that does not affect the encoding: to its semicolon, or the end of its block."""
        while (token := self._take()) != ";":
            if token in _OPENED:
                self._block(_OPENED[token])
                if token == "{" and self._token not in (";", ",", "]"):
                    return

    def _block(self, end: str) -> None:
        while (token := self._take()) != end:
            if token in _OPENED:
                self._block(_OPENED[token])

    # ---------------------------------------------------------------- contents of a file

    def _read_file(self) -> None:
        self.file.syntax = "proto2"
        while self._token:
            match self._take():
                case "syntax":
                    self._skip("=")
                    self.file.syntax = self._string()
                    self._skip(";")
                case "edition":
                    raise self._wrong('editions are not read; syntax = "proto3" and "proto2" are')
                case "package":
                    self.file.package = self._name()
                    self._skip(";")
                case "import":
                    if self._token in ("public", "weak"):
                        self._take()
                    self.file.dependency.append(self._string())
                    self._skip(";")
                case "message":
                    self._message(self.file.message_type.add())
                case "enum":
                    self._enum(self.file.enum_type.add())
                case "option" | "extend" | "service":
                    self._statement()
                case ";":
                    pass
                case other:
                    raise self._wrong(f"expected a message or an enum, found {other}")
        if self.file.syntax not in ("proto2", "proto3"):
            raise self._wrong(f"syntax {self.file.syntax!r} is not known")

    def _message(self, message: DescriptorProto) -> None:
        message.name = self._name()
        self._skip("{")
        alone: list[FieldDescriptorProto] = []
        while self._token != "}":
            match self._token:
                case "message":
                    self._take()
                    self._message(message.nested_type.add())
                case "enum":
                    self._take()
                    self._enum(message.enum_type.add())
                case "oneof":
                    self._take()
                    self._oneof(message)
                case "option" | "extend" | "extensions" | "reserved":
                    self._statement()
                case ";":
                    self._take()
                case "map":
                    self._map(message)
                case _:
                    self._labeled(message, alone)
        self._skip("}")
        for field in alone:  # after all declared oneofs, as in every descriptor
            field.oneof_index = len(message.oneof_decl)
            message.oneof_decl.add(name=f"_{field.name}")

    def _labeled(self, message: DescriptorProto, alone: list[FieldDescriptorProto]) -> None:
        label = self._take() if self._token in _LABELS else None
        field = self._field(message)
        field.label = _LABELS[label or "optional"]
        if label == "optional" and self.file.syntax == "proto3":
            field.proto3_optional = True
            alone.append(field)

    def _oneof(self, message: DescriptorProto) -> None:
        index = len(message.oneof_decl)
        message.oneof_decl.add(name=self._name())
        self._skip("{")
        while self._token != "}":
            match self._token:
                case "option":
                    self._statement()
                case ";":
                    self._take()
                case _:
                    field = self._field(message)
                    field.label, field.oneof_index = FieldDescriptorProto.LABEL_OPTIONAL, index
        self._skip("}")

    def _field(self, message: DescriptorProto) -> FieldDescriptorProto:
        if self._token == "group":
            raise self._wrong("groups are not read")
        field = message.field.add()
        self._typed(field, self._name())
        self._named(field)
        return field

    def _typed(self, field: FieldDescriptorProto, tp: str) -> None:
        if tp in _SCALARS:
            field.type = _SCALARS[tp]
        else:
            field.type_name = tp

    def _named(self, field: FieldDescriptorProto) -> None:
        """Parse name, number and options, to the semicolon."""
        field.name = self._name()
        self._skip("=")
        try:
            field.number = self._number()
        except (ValueError, OverflowError) as error:
            raise self._wrong(str(error)) from None
        self._options(field)
        self._skip(";")

    def _options(self, field: FieldDescriptorProto) -> None:
        """Parse the options of a field; its default is kept, because it is the value of an absent field."""
        separator = "["
        while self._token == separator:
            self._take()
            if self._token == "default":
                self._take()
                self._skip("=")
                field.default_value = self._default(field)
            while self._token not in (",", "]"):
                if (token := self._take()) in _OPENED:
                    self._block(_OPENED[token])
            separator = ","
        if separator == ",":
            self._skip("]")

    def _default(self, field: FieldDescriptorProto) -> str:
        """Return the default as in a descriptor: text as it is, bytes with escapes, numbers in digits."""
        if self._token[:1] in ("'", '"'):
            is_bytes = field.type == FieldDescriptorProto.TYPE_BYTES
            return text_encoding.CEscape(self._bytes(), as_utf8=False) if is_bytes else self._string()
        sign = self._take() if self._token == "-" else ""
        token = self._take()
        base = 16 if token[:2] in ("0x", "0X") else 8 if re.fullmatch("0[0-7]+", token) else 0
        return f"{sign}{int(token, base) if base else token}"

    def _map(self, message: DescriptorProto) -> None:
        self._take()
        self._skip("<")
        key = self._name()
        self._skip(",")
        value = self._name()
        self._skip(">")
        field = message.field.add(label=FieldDescriptorProto.LABEL_REPEATED)
        self._named(field)
        field.type_name = "".join(part[:1].upper() + part[1:] for part in field.name.split("_")) + "Entry"
        entry = message.nested_type.add(name=field.type_name)
        entry.options.map_entry = True
        for number, (name, tp) in enumerate((("key", key), ("value", value)), 1):
            made = entry.field.add(name=name, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
            self._typed(made, tp)

    def _enum(self, enum: EnumDescriptorProto) -> None:
        enum.name = self._name()
        self._skip("{")
        while self._token != "}":
            match self._take():
                case "option":
                    if self._token == "allow_alias":
                        self._take()
                        self._skip("=")
                        enum.options.allow_alias = self._skip("true", "false") == "true"
                        self._skip(";")
                    else:
                        self._statement()
                case "reserved":
                    self._statement()
                case ";":
                    pass
                case name:
                    self._skip("=")
                    self._value(enum, name)
        self._skip("}")

    def _value(self, enum: Any, name: str) -> None:
        try:
            enum.value.add(name=name, number=self._number())
        except (ValueError, OverflowError) as error:
            raise self._wrong(str(error)) from None
        if self._token == "[":
            self._take()
            self._block("]")
        self._skip(";")


def _unescaped(escape: re.Match[bytes]) -> bytes:
    octal, hexadecimal, short, long, other = escape.groups()
    if other is not None:
        return _CONTROL.get(other, other)
    if octal is not None:
        return bytes([int(octal, 8)])
    return bytes([int(hexadecimal, 16)]) if hexadecimal is not None else chr(int(short or long, 16)).encode()
