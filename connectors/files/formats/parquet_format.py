"""The options of Parquet. Code that needs pyarrow is in ``arrow_layout``, which is imported when a sink is created.

Rule: a type without one obvious counterpart is refused with the field's name; ``schema`` then defines its column.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kafka_eos._util.extras import ensure_extra
from kafka_eos.connectors.files.formats.format import expect_compression
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json

if TYPE_CHECKING:
    import pyarrow as pa

    from kafka_eos.connectors.files.formats.arrow_layout import ArrowLayout


class Parquet(Struct, frozen=True):
    """The Parquet format.

    ``schema``: a pyarrow schema, for streams of dicts, or to override the types of a model.
    ``compression``: "snappy", "zstd", "gzip", "lz4" or None.
    ``row_group``: rows per row group, which are in memory until they are written.
    """

    schema: pa.Schema | None = None
    compression: str | None = "snappy"
    row_group: int = 131_072

    def __post_init__(self) -> None:
        expect_compression(self.compression, ("snappy", "zstd", "gzip", "lz4", None), "Parquet")
        if self.row_group < 1:
            raise ConfigError("row_group must be at least one row")

    @property
    def extension(self) -> str:
        return "parquet"

    @property
    def needs_type(self) -> bool:
        return self.schema is None

    def layout(self, value: Any, envelope: bool) -> ArrowLayout:
        ensure_extra("parquet", "FileSink with format=parquet")
        if value is None and self.schema is None:
            raise ConfigError(
                "Parquet needs its columns: value=Model, or format=Parquet(schema=pyarrow.schema(…)) for dicts"
            )
        from kafka_eos.connectors.files.formats.arrow_layout import ArrowLayout

        return ArrowLayout(value, self.schema, envelope, self.compression, self.row_group)

    def describe(self) -> Mapping[str, Json]:
        return {} if self.compression == "snappy" else {"compression": self.compression}
