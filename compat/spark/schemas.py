"""Schemas of tables in the forms that Arrow and Spark have for them. Layer 5."""

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from appliance.errors import ConfigError
from compat.tables.schema import schema_of
from compat.tables.table import Query


def spark_schema(query: Query) -> StructType:
    """Return the columns of a query.

    Raises:
        ConfigError: there is no such table or column.
    """
    return from_arrow_schema(query.schema)


def arrow_schema(table: str, wanted: StructType) -> pa.Schema:
    """Return the schema in which Spark expects the rows of a table.

    Args:
        table: its name.
        wanted: columns of the table in any order, as the user gave them or `spark_schema` did.

    Raises:
        ConfigError: there is no such column, or it has another type.
    """
    own = schema_of(table, wanted.fieldNames())
    schema = to_arrow_schema(wanted, timezone="UTC")
    for field, given in zip(own, schema, strict=True):
        if nullable(field) != nullable(given):
            kind = from_arrow_schema(pa.schema([field]))[0].dataType.simpleString()
            asked = wanted[field.name].dataType.simpleString()
            raise ConfigError(f"column {field.name} of table {table} is {kind}, not {asked}")
        if field.nullable and not given.nullable:
            raise ConfigError(f"column {field.name} of table {table} may be null: allow it")
    return schema


def nullable(field: pa.Field) -> pa.Field:
    """Return a field like this one, every part of which may be null."""
    return field.with_type(_nullable_type(field.type)).with_nullable(True)


def _nullable_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_list(kind):
        return pa.list_(nullable(kind.value_field))
    if pa.types.is_struct(kind):
        return pa.struct([nullable(field) for field in kind])
    return kind
