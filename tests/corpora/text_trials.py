"""Trials of text: JSON, JSON Schema, CSV and .proto files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import jsonschema_rs
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from kafka_eos.codecs import JsonCodec
from kafka_eos.codecs.json_schema.draft_07 import draft_07
from kafka_eos.codecs.protobuf.descriptor_pools import pooled
from kafka_eos.codecs.protobuf.proto_parser import parse_proto
from kafka_eos.connectors.files import FileSource
from tests.contract.carriers import is_same, read_all
from tests.corpora.outcomes import AT_ODDS, Outcome


def try_json(home: Path) -> Iterator[Outcome]:
    """Files that must be read (y), must be refused (n), or may be either (i). What is read is what Python reads."""
    codec = JsonCodec[Any](Any)
    for path in sorted(home.glob("test_parsing/*.json")):
        data, group = path.read_bytes(), {"y": "must be read", "n": "must be refused", "i": "either"}[path.name[0]]
        try:
            value = codec.decode(data)
        except ValueError:
            yield Outcome(group, "refused", path.name, wrong=path.name.startswith("y_"))
            continue
        wrong = path.name.startswith("n_") or (path.name.startswith("y_") and not is_same(value, json.loads(data)))
        yield Outcome(group, "read as another value" if wrong else "read", path.name, wrong)
        yield Outcome("written again", _writes_again(codec, value), path.name)


def _writes_again(codec: JsonCodec[Any], value: Any) -> str:
    try:
        data = codec.encode(value)
    except ValueError:
        return "rejected"
    assert is_same(codec.decode(data), value)
    return "equal"


def try_json_schemas(home: Path) -> Iterator[Outcome]:
    """Schemas of three drafts, converted to draft-07. Those of draft-07 must judge each value as before."""
    for draft in ("draft7", "draft2019-09", "draft2020-12"):
        for path in sorted((home / "tests" / draft).glob("*.json")):
            for case in json.loads(path.read_bytes()):
                yield from _try_schema(draft, f"{draft}/{path.name}: {case['description']}", case)


def _try_schema(draft: str, name: str, case: dict[str, Any]) -> Iterator[Outcome]:
    schema = case["schema"]
    if draft == "draft7" and isinstance(schema, dict):  # its schemas do not say so
        schema = {"$schema": "http://json-schema.org/draft-07/schema#", **schema}
    try:
        converted = draft_07(schema)
    except ValueError:
        yield Outcome(f"{draft}, schemas", "refused", name, wrong=True)
        return
    yield Outcome(f"{draft}, schemas", "converted", name)
    try:
        rules = jsonschema_rs.Draft7Validator(converted, validate_formats=False)
    except (ValueError, LookupError):  # it refers to another document
        yield Outcome(f"{draft}, schemas", "not complete", name)
        return
    for value in case["tests"]:
        same = rules.is_valid(value["data"]) is value["valid"]
        what = "judged as before" if same else "judged otherwise"
        yield Outcome(f"{draft}, values", what, f"{name}: {value['description']}", wrong=not same and draft == "draft7")


def try_csv(home: Path) -> Iterator[Outcome]:
    """Files and what is in them, as JSON."""
    for path in sorted(home.glob("csvs/*.csv")):
        expected = json.loads((home / "json" / f"{path.stem}.json").read_bytes())
        with TemporaryDirectory() as directory:
            shutil.copy(path, directory)
            found = read_all(FileSource[Any](Path(directory), format="csv"))
        if path.name in AT_ODDS:
            yield Outcome("files", f"at odds: {AT_ODDS[path.name]}", path.name, wrong=found == expected)
        else:
            same = found == expected
            yield Outcome("files", "read" if same else "read as other rows", path.name, wrong=not same)


def try_protos(home: Path) -> Iterator[Outcome]:
    """Files of Google's interfaces: each is parsed, and its types are found in the files that it imports."""
    files = dict[str, FileDescriptorProto]()
    for path in sorted(home.rglob("*.proto")):
        name = str(path.relative_to(home))
        try:
            files[name] = parse_proto(path.read_text(), name)
        except ValueError as error:
            yield Outcome("files", "refused", f"{name}: {error}", wrong=True)
        else:
            yield Outcome("files", "parsed", name)
    for name, file in files.items():
        try:
            pooled(file, files)
        except (ValueError, TypeError) as error:
            yield Outcome("with their imports", "not linked", f"{name}: {error}", wrong=True)
        else:
            yield Outcome("with their imports", "linked", name)
