"""The catalog's description of a user's table, and whether a sink can keep its guarantee there.

Rule: ``problems`` is pure, over what ``find`` has read of the catalog.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from msgspec import Struct

from kafka_eos.connectors._staged_tables.stage_names import TargetTable
from kafka_eos.connectors.postgres.connection import Connection, fetch_row

_KINDS: Final = {
    "v": "a view",
    "m": "a materialized view",
    "f": "a foreign table, whose server takes no part in the transaction",
    "S": "a sequence",
}

_TABLE: Final = """
    SELECT c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text,
        has_table_privilege(c.oid, 'INSERT'),
        has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'UPDATE')
            AND has_table_privilege(c.oid, 'DELETE'),
        EXISTS (SELECT FROM pg_constraint WHERE conrelid = c.oid AND contype IN ('u', 'p', 'x', 'f'))
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass(CASE WHEN %(schema)s::text IS NULL THEN quote_ident(%(table)s::text)
                              ELSE format('%%I.%%I', %(schema)s::text, %(table)s::text) END)
"""
_PARTITIONS: Final = """
    SELECT c.relname, c.relkind::text, c.relpersistence::text
    FROM pg_partition_tree(%s) p JOIN pg_class c ON c.oid = p.relid WHERE p.level > 0 ORDER BY c.relname
"""
_COLUMNS: Final = """
    SELECT a.attname,
        format_type(a.atttypid, a.atttypmod)
            || coalesce(' COLLATE ' || quote_ident(n.nspname) || '.' || quote_ident(c.collname), ''),
        t.typname, a.attnotnull, a.atthasdef OR a.attidentity <> '', a.attgenerated <> '' OR a.attidentity = 'a',
        CASE WHEN t.typlen >= 0 THEN '' WHEN t.typcategory = 'S' OR t.typname = 'bytea' THEN 'octets' ELSE 'any' END,
        t.typtype = 'd' AND t.typnotnull, t.typtype = 'b' AND t.typnamespace = 'pg_catalog'::regnamespace,
        (WITH RECURSIVE below AS (
            SELECT a.atttypid AS id, a.atttypmod AS modifier
            UNION ALL
            SELECT d.typbasetype, d.typtypmod FROM below JOIN pg_type d ON d.oid = below.id AND d.typtype = 'd')
         SELECT format_type(b.oid, below.modifier) FROM below JOIN pg_type b ON b.oid = below.id
         WHERE b.typtype = 'b' AND b.typnamespace = 'pg_catalog'::regnamespace),
        CASE WHEN a.attgenerated = 's' THEN pg_get_expr(g.adbin, g.adrelid) END,
        ARRAY(SELECT o.attname::text FROM pg_depend d
                JOIN pg_attribute o ON o.attrelid = d.refobjid AND o.attnum = d.refobjsubid
              WHERE d.classid = 'pg_attrdef'::regclass AND d.objid = g.oid AND d.refclassid = 'pg_class'::regclass
                AND d.refobjid = a.attrelid AND d.refobjsubid <> a.attnum)
    FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid
        LEFT JOIN pg_attrdef g ON g.adrelid = a.attrelid AND g.adnum = a.attnum
        LEFT JOIN pg_collation c ON c.oid = a.attcollation AND a.attcollation <> t.typcollation
        LEFT JOIN pg_namespace n ON n.oid = c.collnamespace
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum
"""
_CHECKS: Final = """
    SELECT conname, pg_get_expr(conbin, conrelid),
        ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = conrelid AND attnum = ANY (conkey))
    FROM pg_constraint WHERE conrelid = %s AND contype = 'c' AND conkey IS NOT NULL ORDER BY conname
"""
_PARTITION_RULE: Final = """
    SELECT coalesce(string_agg('(' || pg_get_partition_constraintdef(p.relid) || ')', ' OR ' ORDER BY p.relid DESC),
                    'false'),
        ARRAY(SELECT DISTINCT a.attname::text FROM pg_partition_tree(t.partrelid) p
                JOIN pg_depend d ON d.objid = p.relid AND d.refobjid = p.relid AND d.refobjsubid = 0 AND d.objsubid > 0
                JOIN pg_attribute a ON a.attrelid = d.objid AND a.attnum = d.objsubid
              WHERE NOT p.isleaf AND d.deptype = 'i'
                AND d.classid = 'pg_class'::regclass AND d.refclassid = 'pg_class'::regclass)
    FROM pg_partitioned_table t LEFT JOIN pg_partition_tree(t.partrelid) p ON p.isleaf AND p.level > 0
    WHERE t.partrelid = to_regclass(format('%%I.%%I', %s::text, %s::text)) AND t.partdefid = 0
    GROUP BY t.partrelid
"""
"""The newest partitions come first, because most rows go there."""
_UNIQUE: Final = """
    SELECT ARRAY(SELECT attname::text FROM pg_attribute WHERE attrelid = i.indrelid
                 AND attnum = ANY ((i.indkey::int2[])[0:i.indnkeyatts - 1]))
    FROM pg_index i WHERE i.indrelid = %s AND i.indisunique AND i.indisvalid AND i.indimmediate
        AND i.indpred IS NULL AND i.indexprs IS NULL
"""
_INDEXES: Final = """
    SELECT substr(pg_get_indexdef(i.indexrelid), length(format('CREATE %%sINDEX %%I ON %%s%%I.%%I USING ',
            CASE WHEN i.indisunique THEN 'UNIQUE ' END, x.relname, CASE WHEN x.relkind = 'I' THEN 'ONLY ' END,
            n.nspname, c.relname)) + 1),
        i.indexprs IS NULL AND i.indpred IS NULL AND m.amname = 'btree',
        ARRAY(SELECT a.attname::text FROM pg_attribute a
              WHERE a.attrelid = i.indrelid AND a.attnum > 0 AND (a.attnum = ANY (i.indkey::int2[])
                OR a.attnum IN (SELECT d.refobjsubid FROM pg_depend d WHERE d.classid = 'pg_class'::regclass
                    AND d.objid = x.oid AND d.refclassid = 'pg_class'::regclass AND d.refobjid = i.indrelid)))
    FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_am m ON m.oid = x.relam
        JOIN pg_class c ON c.oid = i.indrelid JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE i.indrelid = %s AND i.indisready ORDER BY x.relname
"""
_TIES: Final = """
    SELECT bool_or(EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND (i.indisunique OR i.indisexclusion))),
        bool_or(c.relhastriggers), bool_or(c.relhasrules), bool_or(row_security_active(c.oid))
    FROM pg_class c WHERE c.oid = %(of)s OR c.oid IN (SELECT relid FROM pg_partition_tree(%(of)s))
"""
_TIED_BY: Final = ("a unique index or key", "a foreign key or a trigger", "a rule", "row security")


class TableColumn(Struct, frozen=True):
    """A column of the user's table, as the system catalog describes it."""

    name: str
    type: str
    """The type as SQL, with length, scale and its own collation."""
    type_name: str
    not_null: bool
    default: bool
    generated: bool
    length: str
    """The length of its values: empty if fixed, "octets" if ``octet_length`` gives it, else "any"."""
    never_null: bool
    """True if its domain is NOT NULL, which also applies to a deletion."""
    built_in: bool
    """True if its type is the server's own, without user-defined rules for values."""
    stored: str | None
    """Its type if that is the server's own, or the one below its domain; None for other types."""
    expression: str | None
    """The expression by which the server computes and stores it; None if it does not."""
    inputs: Sequence[str]
    """The columns in its expression."""


class TableIndex(Struct, frozen=True):
    """An index of the user's table."""

    definition: str
    """What follows USING in its statement."""
    is_plain: bool
    """True for a B-tree of columns: without expressions and conditions."""
    columns: frozenset[str]
    """The columns that it depends on."""


class TableInfo(Struct, frozen=True):
    """The user's table, as the system catalog describes it."""

    schema: str
    name: str
    kind: str
    persistence: str
    may_insert: bool
    may_change: bool
    constrained: bool
    """True if it has constraints on several rows: unique, exclusion or foreign keys."""
    columns: tuple[TableColumn, ...]
    checks: tuple[tuple[str, str, frozenset[str]], ...]
    """Name, condition and columns of each check constraint."""
    unique: frozenset[frozenset[str]]
    """The columns of each unique index that can identify rows."""
    indexes: tuple[TableIndex, ...]
    partitions: tuple[tuple[str, str, str], ...]
    """Name, kind and persistence of each partition, on all levels."""
    lock_hazards: tuple[str, ...]
    """Features for which a new row may wait for other rows: unique keys, triggers, rules."""

    @property
    def types(self) -> dict[str, str]:
        """Return the SQL types of columns that have a built-in type."""
        return {column.name: column.stored for column in self.columns if column.stored is not None}

    def computed_from(self, columns: Sequence[str]) -> list[tuple[TableColumn, str]]:
        """Return the columns that the server computes from these columns alone, with their expressions."""
        return [
            (column, column.expression)
            for column in self.columns
            if column.expression is not None and {*column.inputs} <= {*columns}
        ]

    def demands(self, columns: Sequence[str]) -> Iterator[tuple[str, str]]:
        """Yield the table's rules for one row's values of these columns: a name and a condition each."""
        for column in self.columns:
            if column.not_null and column.name in columns:
                quoted = column.name.replace('"', '""')
                yield f"{column.name} is NOT NULL"[:63], f'"{quoted}" IS NOT NULL'
        for name, condition, of in self.checks:
            if of <= set(columns):
                yield name, condition


def find(connection: Connection, schema: str | None, name: str) -> TableInfo | None:
    """Return the catalog's description of a table; None if it does not exist. Without a schema the search
    path decides."""
    row = connection.execute(_TABLE, {"schema": schema, "table": name}).fetchone()
    if row is None:
        return None
    oid, schema, name, kind, persistence, may_insert, may_change, constrained = row
    return TableInfo(
        schema,
        name,
        kind,
        persistence,
        may_insert,
        may_change,
        constrained,
        columns=tuple(TableColumn(*each) for each in connection.execute(_COLUMNS, (oid,))),
        checks=tuple((each[0], each[1], frozenset(each[2])) for each in connection.execute(_CHECKS, (oid,))),
        unique=frozenset(frozenset(each[0]) for each in connection.execute(_UNIQUE, (oid,))),
        indexes=tuple(
            TableIndex(each[0], each[1], frozenset(each[2])) for each in connection.execute(_INDEXES, (oid,))
        ),
        partitions=tuple((each[0], each[1], each[2]) for each in connection.execute(_PARTITIONS, (oid,))),
        lock_hazards=_ties(connection, oid),
    )


def find_partition_rule(connection: Connection, target: TargetTable) -> str | None:
    """Return the condition for a row to have a partition at present; None if each row has one, or it cannot be checked.

    It cannot be checked if the sink does not write a column of the partition key.
    """
    row = connection.execute(_PARTITION_RULE, (target.schema, target.table)).fetchone()
    return row[0] if row is not None and {*row[1]} <= {*target.columns} else None


def _ties(connection: Connection, oid: int) -> tuple[str, ...]:
    found = fetch_row(connection.execute(_TIES, {"of": oid}))
    return tuple(tie for tie, has in zip(_TIED_BY, found, strict=True) if has)


def problems(table: TableInfo, target: TargetTable, deletes: bool) -> Iterator[str]:
    """Yield reasons why a sink cannot keep its guarantee in this table, with the remedy. ``deletes``: it has
    ``delete=``."""
    if (kind := _KINDS.get(table.kind)) is not None:
        yield f"it is {kind}: write to a table"
        return
    if table.persistence == "u":
        yield "it is unlogged, so a crash of the server empties it: ALTER TABLE … SET LOGGED"
    for name, kind, persistence in table.partitions:
        if kind in _KINDS:
            yield f"its partition {name} is {_KINDS[kind]}: detach it"
        elif persistence == "u":
            yield f"its partition {name} is unlogged, so a crash of the server empties it: ALTER TABLE … SET LOGGED"
    has = {column.name: column for column in table.columns}
    if missing := [name for name in target.columns if name not in has]:
        yield f"it has no column {', '.join(missing)} (it has {', '.join(has)})"
    if computed := [name for name in target.columns if name in has and has[name].generated]:
        yield f"the server itself computes {', '.join(computed)}: leave such columns out with columns=(…)"
    demanded = [c.name for c in table.columns if c.not_null and not c.default and not c.generated]
    if unset := [name for name in demanded if name not in target.columns]:
        yield f"{', '.join(unset)} must not be null, has no default, and the sink does not write it"
    others = [name for name in target.columns if name in has and name not in target.key]
    if deletes and (strict := [name for name in others if has[name].never_null]):
        yield (
            f"the domain of {', '.join(strict)} is NOT NULL, but a deletion contains only its "
            "key: declare the column NOT NULL instead of the domain"
        )
    if target.key and frozenset(target.key) not in table.unique:
        yield (
            f"no primary key or unique index has exactly the columns ({', '.join(target.key)}): create one that is "
            "neither partial nor deferrable"
        )
    if not (table.may_insert and (table.may_change or not target.key)):
        yield f"the user lacks rights: GRANT {'SELECT, INSERT, UPDATE, DELETE' if target.key else 'INSERT'}"
