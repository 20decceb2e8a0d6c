"""Protobuf files in separate descriptor pools: each writer's schema is isolated from all others.

Rule: Protobuf validates the files when it builds the pool; an invalid one is a ValueError. Its own files
(``google/protobuf/timestamp.proto`` …) need no reference, here as in every registry.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, Final

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from kafka_eos.codecs.protobuf.proto_parser import parse_proto

_OWN: Final = {
    module.DESCRIPTOR.name: module.DESCRIPTOR
    for module in (
        any_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, source_context_pb2, struct_pb2,
        timestamp_pb2, type_pb2, wrappers_pb2,
    )
}  # fmt: skip
_SCHEMA: Final = "schema.proto"


def load_schema(text: str, named: Mapping[str, str]) -> Any:
    """Load a registered Protobuf schema, text or base64 descriptor.

    Raises ValueError if it is invalid. A missing import is accepted if no field uses its types.
    """
    files = {name: _read(each, name) for name, each in named.items()}
    return pooled(_read(text, _unused(files)), files)


def pooled(file: FileDescriptorProto, files: Mapping[str, FileDescriptorProto]) -> Any:
    """Return the ``FileDescriptor``, in a new pool with those of ``files`` that it imports."""
    pool = DescriptorPool()
    try:
        return _added(pool, file, files, set())
    except (TypeError, RecursionError) as error:
        raise ValueError(f"not a usable Protobuf schema: {' '.join(str(error).split())}") from None


def _added(pool: Any, file: Any, files: Mapping[str, Any], known: set[str]) -> Any:
    known.add(file.name)
    found = []
    for name in file.dependency:
        other = files.get(name) or own(name)
        if other is not None:
            found.append(name)
            if name not in known:
                _added(pool, other, files, known)
    alone = FileDescriptorProto()
    alone.CopyFrom(file)
    del alone.dependency[:], alone.public_dependency[:], alone.weak_dependency[:], alone.service[:]
    # As public imports: types of indirect imports are found too, whether or not the import is declared public.
    alone.dependency.extend(found)
    alone.public_dependency.extend(range(len(found)))
    return pool.AddSerializedFile(alone.SerializeToString())


def own(name: str) -> FileDescriptorProto | None:
    """Return a file that Protobuf provides, or None."""
    return proto(_OWN[name]) if name in _OWN else None


def proto(file: Any) -> FileDescriptorProto:
    """Return a ``FileDescriptor`` as a message."""
    made = FileDescriptorProto()
    file.CopyToProto(made)
    return made


def to_descriptor_set(file: Any) -> FileDescriptorSet:
    """Collect a file and its imports, dependencies first."""
    return FileDescriptorSet(file=[proto(each) for each in _with_imports(file, set())])


def imported(file: Any) -> list[Any]:
    """Return the direct imports of a ``FileDescriptor``, without Protobuf's own."""
    return [each for each in file.dependencies if each.name not in _OWN]


def _with_imports(file: Any, seen: set[str]) -> Iterator[Any]:
    for each in imported(file):
        if each.name not in seen:
            seen.add(each.name)
            yield from _with_imports(each, seen)
    yield file


def _read(text: str, name: str) -> FileDescriptorProto:
    try:
        file = FileDescriptorProto.FromString(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError, DecodeError):
        return parse_proto(text, name)
    file.name = name
    return file


def _unused(files: Mapping[str, Any]) -> str:
    return next(name for number in range(len(files) + 1) if (name := f"{number or ''}{_SCHEMA}") not in files)
