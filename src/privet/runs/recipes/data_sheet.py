"""What the user says about the data, for the report that people sign. No figure depends on it."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import ValidationError

from privet.errors import RecipeError
from privet.runs.recipes.training_settings import Table

_MAX_BYTES = 2**20


class DataSheet(Table):
    """The fields of the data sheet, in the user's own words.

    Attributes:
        controller: Who decides about the processing.
        purpose: What for.
        legal_basis: What permits it.
        description: What the data are, where they come from, and whom they are about.
        retention: How long data and model are kept.
        contact: Whom to ask.
    """

    controller: str | None = None
    purpose: str | None = None
    legal_basis: str | None = None
    description: str | None = None
    retention: str | None = None
    contact: str | None = None


def read_data_sheet(path: str | Path) -> DataSheet:
    """Read a TOML file with the fields of a data sheet.

    Raises:
        RecipeError: it cannot be read, or holds another field.
    """
    known = ", ".join(DataSheet.model_fields)
    try:
        content = Path(path).read_bytes()
        if len(content) > _MAX_BYTES:
            raise RecipeError(f"{path} is larger than {_MAX_BYTES:,} bytes, and a data sheet is a page.")
        return DataSheet.model_validate(tomllib.loads(content.decode("utf-8")))
    except OSError as error:
        raise RecipeError(f"The data sheet {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RecipeError(f"The data sheet {path} is not TOML: {error}.") from None
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise RecipeError(
            f"The data sheet {path} has a wrong entry {where!r}. Its fields are texts: {known}."
        ) from None
