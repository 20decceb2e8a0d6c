"""``IcebergSink``: rows in an Iceberg table, each exactly once.

Rule: pyiceberg is imported when a sink is created.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeVar

from kafka_eos._util.extras import ensure_extra
from kafka_eos._util.secrets import show_address
from kafka_eos.abc.context import JobContext
from kafka_eos.abc.dataset import Dataset
from kafka_eos.connectors._lake.lake_sink import LakeSink
from kafka_eos.core.errors import ConfigError

T = TypeVar("T")

_NOTHING: Final[Mapping[str, str]] = {}


class IcebergSink(LakeSink[T]):
    """A sink that writes a stream of ``T`` into an Iceberg table, each value exactly once, with one snapshot per epoch.

    - ``table``: its name in the catalog, with its namespace: ``"shop.sales"``.
    - ``catalog``: the name of the catalog in pyiceberg's configuration.
    - ``properties``: its address and login, in addition to pyiceberg's configuration: ``{"type": "rest", "uri": …}``,
      ``{"type": "sql", "uri": "sqlite:///…", "warehouse": …}``.
    - ``value``: the type of the values, a pydantic model, msgspec Struct or dataclass: its fields are the columns. The
      default is the type of the stream; if that is unknown or a dict, rows are dicts with the table's columns.
    - ``create``: create the table at the start if it does not exist, with the columns of ``value``.
    - ``key``: columns that identify a row: a value replaces the row of its key. Without a key every value is a new row.
    - ``delete``: a function; a value for which it returns true deletes the row of its key.
    - ``partition_by``: how ``create`` partitions the table: columns, or ``"year(at)"``, ``"month(at)"``, ``"day(at)"``,
      ``"hour(at)"``, ``"bucket[16](user)"``, ``"truncate[4](user)"``. An existing table keeps its partitioning.
    """

    _connector = "iceberg"
    _version = "snapshot"
    _commit_text = "one snapshot of the table per epoch, with the epoch in the table's properties"
    _maintenance = "rewrite data files and expire snapshots"

    def __init__(
        self,
        table: str,
        *,
        catalog: str = "default",
        properties: Mapping[str, str] = _NOTHING,
        value: type[T] | None = None,
        create: bool = False,
        partition_by: Sequence[str] = (),
        key: str | Sequence[str] = (),
        delete: Callable[[T], bool] | None = None,
    ) -> None:
        ensure_extra("iceberg", "IcebergSink")
        _expect_name(table)
        if not catalog:
            raise ConfigError("IcebergSink: catalog must not be empty")
        given: Mapping[str, object] = properties
        if wrong := [name for name, value_of in given.items() if not isinstance(value_of, str)]:
            raise ConfigError(f"IcebergSink: properties must be strings (not strings: {', '.join(map(str, wrong))})")
        from kafka_eos.connectors.iceberg.iceberg_table import IcebergTable

        self._catalog, self._name = catalog, table
        self._catalog_table = opened = IcebergTable(catalog, table, properties)
        scope = ":".join(["iceberg", *filter(None, (catalog, _address(properties.get("uri", "")))), table])
        super().__init__(opened, scope, value, create, partition_by, key, delete)

    @property
    def default_name(self) -> str:
        """Return the table's name, marked as a table: a topic in the same plan may have the same name."""
        return f"{self._name.rpartition('.')[2]}-table"

    def find_location(self, ctx: JobContext | None) -> str | None:
        """Return where the table's data files are, which only the catalog knows; None before a start."""
        return None if ctx is None else self._catalog_table.find_data_location()

    def list_datasets(self, ctx: JobContext) -> Sequence[Dataset]:
        """Return the table, in its catalog."""
        catalog, _, name = self._table.display_name.partition(":")
        return [Dataset(f"iceberg://{catalog}", name)]

    def advice(self, ctx: JobContext) -> str:
        """Return advice for a catalog that does not respond."""
        return (
            f"Check that catalog {self._catalog!r} and the store of its tables run and accept "
            "this job's credentials. Their addresses are set in properties=, .pyiceberg.yaml or "
            f"PYICEBERG_CATALOG__{self._catalog.upper()}__URI"
        )

    def _column_of(self, by: str) -> str:
        from kafka_eos.connectors.iceberg.partitions import parsed

        return parsed(by)[0]


def _expect_name(table: object) -> None:
    if not isinstance(table, str) or table.count(".") < 1 or not all(table.split(".")):
        raise ConfigError(f"IcebergSink({table!r}): include the namespace in the table's name, as in 'shop.sales'")


def _address(uri: str) -> str:
    """Return the host, port and path of the catalog. Raise ConfigError if they cannot be told from a login."""
    if "://" not in uri:
        return ""
    try:
        return show_address(uri).partition("://")[2]
    except ValueError as error:
        raise ConfigError(f"IcebergSink: uri of the catalog (it is not shown): {error}") from None
