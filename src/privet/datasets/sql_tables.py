"""Tables in databases: one query, read once, through SQLAlchemy.

An address names such a table in one string: ``URL#table=NAME`` or ``URL#query=SELECT ...``, with ``key=COLUMN&``
before either where the records have no primary key. ``env:NAME`` in the place of the URL takes the URL from an
environment variable.

A database returns records in any order, which may depend on all of them. Some samplers deal records into batches by
position, and a resumed run compares records in their order. So records are sorted by a key: a column that names each
record and says nothing else about it. Sorting by all cells would not do: one changed record would move others.

Guarantee: an address with a password is refused, so that none is stored with a recipe or shown. What a driver says is
never shown, because it may hold a value or a password. No statement that writes is sent: a query is one statement that
begins with SELECT, WITH, VALUES or TABLE, in a transaction that is rolled back, on PostgreSQL and SQLite in one that
may only read. What functions of a database do on its server is its own affair: give it a user who may only read.
"""

from __future__ import annotations

import difflib
import importlib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from privet.errors import DataError, DependencyError, PrivetError

_ADDRESS = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*(?=#|$)|[A-Za-z][A-Za-z0-9_+.-]*://")
_PARTS = re.compile(r"(?P<url>.*?)(?:#(?:key=(?P<key>[^&]+)&)?(?:table=(?P<table>.+)|query=(?P<query>.+)))?", re.DOTALL)
_PASSWORD = re.compile(
    r"://[^:/]*:[^@]*@|[?&;][^=&;]*(?:pass(?!file)|pwd|secret|token|credential|(?:api|access|private)_?key|odbc_connect)[^=&;]*=",
    re.I,
)
_READING = re.compile(r"(?:\s|\(|--[^\n]*\n|/\*(?!!).*?\*/)*(?:select|with|values|table)\b[^;]*;?\s*", re.I | re.DOTALL)
_SQLITE = re.compile(r"(?P<scheme>sqlite(?:\+[a-z_]+)?:///)(?P<file>[^?]*)(?P<rest>.*)")
# Packages by the module that they bring, where the names differ.
_PACKAGES = {"MySQLdb": "mysqlclient", "psycopg": "psycopg[binary]", "psycopg2": "psycopg2-binary"}
_KNOWN = ("postgresql", "mysql", "mariadb", "sqlite", "oracle", "mssql")


def is_address(where: str | os.PathLike[str]) -> bool:
    """Whether this is the address of a table in a database, and not a path."""
    return _ADDRESS.match(str(where)) is not None


@dataclass(frozen=True, kw_only=True)
class SqlTable:
    """A table in a database, or the records of a query.

    Attributes:
        url: URL of the database in SQLAlchemy's form without a password, or ``env:NAME``.
        table: Name of a table or view, with ``schema.`` before it where needed; None for a query.
        query: The query; None for a table.
        key: Column that names each record; None for the primary key of the table.
    """

    url: str
    table: str | None = None
    query: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        address, mark, options = self.url.partition("?")
        if _PASSWORD.search(f"{address}{mark}{unquote(options)}"):
            raise DataError(
                "The URL of the database holds a password, which would be stored with the recipe and shown by the "
                "shell's history. Put the URL into an environment variable and name that one: env:CLINIC in the place "
                "of the URL, after export CLINIC='postgresql://...'. Or leave the password to the driver (~/.pgpass)."
            )
        if self.query is not None and _READING.fullmatch(self.query) is None:
            raise DataError(
                "A query is one statement that reads: it begins with SELECT, WITH, VALUES or TABLE, and holds no "
                "semicolon but at its end. Other statements may change the database, and are not sent. Write a "
                "semicolon in a text as CHAR(59) or CHR(59)."
            )

    @classmethod
    def at(cls, address: str | os.PathLike[str]) -> SqlTable:
        """Return the table of an address, which may name neither table nor query yet.

        Raises:
            DataError: the address holds a password, or its query is no statement that only reads.
        """
        parts = _PARTS.fullmatch(str(address))
        assert parts is not None  # the URL may be anything
        return cls(**parts.groupdict())

    def __str__(self) -> str:
        """Return the name in messages."""
        return f"the query at {self.url}" if self.table is None else f"the table {self.table!r} at {self.url}"

    @property
    def address(self) -> str:
        """The address, for recipes and command lines."""
        what = f"table={self.table}" if self.table is not None else f"query={self.query}"
        is_whole = self.table is not None or self.query is not None
        return f"{self.url}#{'' if self.key is None else f'key={self.key}&'}{what}" if is_whole else self.url

    def anchored(self, folder: Path) -> SqlTable:
        """Return the same table with the path of a SQLite file below a folder, unless it is absolute."""
        found = _SQLITE.fullmatch(self.url)
        if found is None or not found["file"] or found["file"].startswith((":memory:", "file:")):
            return self
        file = os.path.normpath((folder / found["file"]).absolute())
        return SqlTable(url=f"{found['scheme']}{file}{found['rest']}", table=self.table, query=self.query, key=self.key)

    def names(self) -> list[str]:
        """Return the names of the columns; no record is looked at.

        Raises:
            DataError: as :meth:`read`.
        """
        with self._result() as (result, _):
            return list(result.keys())

    def key_names(self) -> list[str]:
        """Return the columns of the key; no record is looked at, and the list is empty where no key is known.

        Raises:
            DataError: as :meth:`read`.
        """
        if self.key is not None:
            return [self.key]
        with self._result() as (_, primary):
            return list(primary)

    def read(self) -> tuple[list[str], list[Sequence[object]]]:
        """Return the names of the columns and the records, sorted by the key, from one query.

        Guarantee: the place of a record depends on the keys alone, and on no other value.

        Raises:
            DataError: the address is not complete, the database cannot be read, or the key does not name every record
                once. The message shows no value.
            DependencyError: SQLAlchemy or the driver is missing.
        """
        with self._result() as (result, primary):
            names = list(result.keys())
            keys = self._places(names, primary)
            rows: list[Sequence[object]] = [tuple(row) for row in result]
        places = [tuple(_place(row[key]) for key in keys) for row in rows]
        if any(part is None for place in places for part in place) or len(set(places)) != len(places):
            raise DataError(
                f"The key of {self} does not name every record once: it is empty or the same in some. Name a column in "
                "which all records differ (--key)."
            )
        order = sorted(range(len(rows)), key=places.__getitem__)
        return names, [rows[number] for number in order]

    def _places(self, names: Sequence[str], primary: Sequence[str]) -> list[int]:
        wanted = list(primary) if self.key is None else [self.key]
        if not wanted:
            raise DataError(
                f"In which order are the records of {self}? A database returns them in any, and a run is resumed with "
                "the same records in the same order. Name a column that differs in all records and says nothing else "
                "about them, such as their number: --key COLUMN."
            )
        for name in wanted:
            if names.count(name) != 1:
                raise DataError(
                    f"The key {name!r} should be one column of {self} and is {names.count(name)}.{_near(name, names)} "
                    f"Columns: {', '.join(map(repr, names))}."
                )
        return [names.index(name) for name in wanted]

    @contextmanager
    def _result(self) -> Iterator[tuple[Any, Sequence[str]]]:
        """Send the query; yield its result, which is not read yet, and the primary key of a table."""
        if self.table is None and self.query is None:
            raise DataError(f"Which records of {self.url}? Add --table NAME or --query 'SELECT ...'.")
        sql = _sqlalchemy(self)
        engine = self._engine(sql)
        try:
            # Only names of this library and of columns leave this block: a driver's message may hold a value.
            with engine.connect() as opened:
                connection = opened.execution_options(postgresql_readonly=True, stream_results=True)
                if engine.dialect.name == "sqlite":
                    connection.exec_driver_sql("PRAGMA query_only = ON")
                primary = self._primary_key(sql, connection)
                result = self._sent(sql, connection)
                if not result.returns_rows:
                    raise DataError(f"{self} returns no records. Give a SELECT.")
                yield result, primary
        except PrivetError:
            raise
        except Exception as error:  # noqa: BLE001 -- a driver may raise anything
            raise DataError(
                f"{self} cannot be read: {type(error).__name__}. The message of the driver is not shown, because it "
                "may hold a value or a password. Try the same in the database's own client."
            ) from None
        finally:
            engine.dispose()

    def _sent(self, sql: Any, connection: Any) -> Any:
        if self.query is not None:
            # Without parameters a driver leaves a % in the query alone.
            return connection.exec_driver_sql(self.query, execution_options={"no_parameters": True})
        schema, name = self._schema_and_name()
        return connection.execute(sql.select(sql.text("*")).select_from(sql.table(name, schema=schema)))

    def _primary_key(self, sql: Any, connection: Any) -> Sequence[str]:
        if self.query is not None:
            return ()
        schema, name = self._schema_and_name()
        about = sql.inspect(connection)
        known = [*about.get_table_names(schema), *about.get_view_names(schema)]
        if name not in known:
            raise DataError(f"There is no table or view {self.table!r} at {self.url}.{_near(name, known)}")
        return list(about.get_pk_constraint(name, schema)["constrained_columns"])

    def _schema_and_name(self) -> tuple[str | None, str]:
        schema, _, name = (self.table or "").rpartition(".")
        return schema or None, name

    def _engine(self, sql: Any) -> Any:
        kind = "this kind"
        try:
            url = sql.make_url(self.whole_url())
            kind = url.get_backend_name()
            file = _SQLITE.fullmatch(f"sqlite:///{url.database or ''}") if kind == "sqlite" else None
            path = "" if file is None else file["file"]
            if path and not path.startswith((":memory:", "file:")) and not Path(path).is_file():
                # SQLite would make a new file.
                raise DataError(f"The file of {self} does not exist. Check its path; it is relative to this folder.")
            return sql.create_engine(url, poolclass=sql.pool.NullPool, hide_parameters=True)
        except sql.exc.NoSuchModuleError:
            raise DataError(
                f"SQLAlchemy knows no database {kind!r} here.{_near(kind, _KNOWN)} A URL begins as postgresql://, "
                "mysql+pymysql:// or sqlite:///; some databases need a package of their own."
            ) from None
        except sql.exc.ArgumentError:
            raise DataError(
                f"What {self.url.partition('://')[0]} names is no URL of a database. It has the form "
                "postgresql://user@host/name or sqlite:///file.db."
            ) from None
        except ImportError as missing:
            module = (missing.name or "").partition(".")[0]
            package = _PACKAGES.get(module, module) or "its driver"
            raise DependencyError(
                f"{self} needs the driver {module or 'of the database'}. Install it with: pip install '{package}'."
            ) from None

    def whole_url(self) -> str:
        """Return the URL to connect with, which may hold a password: never show it.

        Raises:
            DataError: the environment variable is not set.
        """
        scheme, _, name = self.url.partition(":")
        if scheme != "env":
            return self.url
        found = os.environ.get(name)
        if not found:
            raise DataError(
                f"{self} takes its URL from the environment variable {name}, which is not set. Set it: export "
                f"{name}='postgresql://user:password@host/name'."
            )
        return found


def same_table(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether two paths or addresses name the same records, as far as their names and files tell.

    A SQLite file that is named without a table is the same as every table in it.
    """
    files = [file for file in map(_file_of, (one, other)) if file is not None and os.path.exists(file)]
    is_one_file = len(files) == 2 and os.path.samefile(*files)
    if not (is_address(one) and is_address(other)):
        return is_one_file
    first, second = SqlTable.at(one), SqlTable.at(other)
    is_one_base = is_one_file or first.whole_url() == second.whole_url()
    return is_one_base and (first.table, first.query) == (second.table, second.query)


def _file_of(where: str | os.PathLike[str]) -> str | None:
    if not is_address(where):
        return os.fspath(where)
    found = _SQLITE.fullmatch(SqlTable.at(where).whole_url())
    return None if found is None else found["file"]


def _place(value: object) -> tuple[int, Any] | None:
    """Return the sorting key of a value, from the value alone: numbers by size before texts; None for an empty one."""
    if isinstance(value, int | float | Decimal):
        is_nan = value.is_nan() if isinstance(value, Decimal) else value != value  # some are not even comparable
        return None if is_nan else (0, value)
    text = "" if value is None or isinstance(value, bytes | memoryview) else str(value)
    return (1, text) if text else None


def _near(name: str, known: Sequence[str]) -> str:
    found = difflib.get_close_matches(name, known, n=1)
    return f" Did you mean {found[0]!r}?" if found else ""


def _sqlalchemy(table: SqlTable) -> Any:
    try:
        return importlib.import_module("sqlalchemy")
    except ImportError:
        raise DependencyError(f"{table} needs SQLAlchemy. Install it with: pip install 'privet[sql]'.") from None
