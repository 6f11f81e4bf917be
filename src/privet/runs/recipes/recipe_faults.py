"""Error messages for unknown keys and impossible values in recipe and schema files. Loads no torch."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from privet.errors import RecipeError
from privet.mechanism.codec import suggestion
from privet.runs.recipes.training_settings import KINDS

# Other programs have these keys elsewhere, so users put them into other tables than the sampling.
_LENGTH_OF_A_RUN = ("epochs", "steps", "batch_size", "dataset_size")
# Keys of pieces: the plan reads them, so the tables of a recipe do not list them.
_IN_PIECES = ("privacy.clipping.norm", "privacy.noise.noise_multiplier")
_MOST_SHOWN = 8

Place = tuple[int | str, ...]


def refuse_unknown_keys(data: Mapping[str, Any], schema: type[BaseModel]) -> None:
    """Refuse an unknown key of a recipe or of one of its tables, and suggest the right key.

    Args:
        data: The plain values of a recipe.
        schema: The class of recipes.

    Raises:
        RecipeError: for the first unknown key.
    """
    tables: list[tuple[str, object, type[BaseModel]]] = [("", data, schema)]
    for name, field in schema.model_fields.items():
        tables += [(f"{name}.", data.get(name), below) for below in _schemas_in(field.annotation)]
    for prefix, table, known in tables:
        for key in table if isinstance(table, Mapping) else ():
            if key in known.model_fields:
                continue
            if key in _LENGTH_OF_A_RUN:
                raise RecipeError(
                    f"{prefix}{key} is not part of a recipe: the length of a run belongs to its guarantee. Set "
                    f"privacy.sampling.{key}."
                )
            raise RecipeError(f"{prefix}{key} is not part of a recipe. {_where_it_belongs(str(key), known, schema)}")


def _where_it_belongs(key: str, here: type[BaseModel], schema: type[BaseModel]) -> str:
    places = [*_places(schema), *_IN_PIECES]
    names = [place.rpartition(".")[2] for place in places]
    near_here = difflib.get_close_matches(key, list(here.model_fields), n=1)
    if key not in names and near_here:
        return suggestion(key, list(here.model_fields))
    near = difflib.get_close_matches(key, names, n=1)
    if near:
        return f"Did you mean '{places[names.index(near[0])]}'?"
    return suggestion(key, list(here.model_fields))


def _places(schema: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted path of every key of a recipe: outer tables first, required tables before optional ones."""
    yield from (f"{prefix}{name}" for name in schema.model_fields if name != "kind")
    for name, field in sorted(schema.model_fields.items(), key=lambda item: not item[1].is_required()):
        # A list of tables has no dotted path.
        if not _is_list(field.annotation):
            for below in _schemas_in(field.annotation):
                yield from _places(below, f"{prefix}{name}.")


def explained(error: ValidationError, data: Mapping[str, Any], schema: type[BaseModel], *, of: str = "A recipe") -> str:
    """Return a message about one fault, with its dotted path or the name of its column.

    Args:
        error: The error of the schema.
        data: The plain values that were checked.
        schema: The class that checked them.
        of: The kind of file, at the beginning of a sentence.
    """
    faults = error.errors(include_url=False)
    # A mistyped key is reported as unknown and as missing; the user can find the unknown one in the file.
    fault = next((found for found in faults if found["type"] == "extra_forbidden"), faults[0])
    where, key = _located(fault["loc"], data)
    known = list(dict.fromkeys(name for one in _schemas_at(fault["loc"], schema) for name in one.model_fields))
    if fault["type"] == "missing":
        return f"{where}{key} is missing. {of} needs it."
    if fault["type"] == "extra_forbidden":
        return f"{where}{key} is not an option here. {suggestion(key.rpartition('.')[2], known)}"
    if fault["type"] == "union_tag_invalid":
        kinds = re.findall(r"'([^']*)'", fault["ctx"]["expected_tags"])
        return f"{where}{key}.kind is {fault['input'].get('kind')!r}. {suggestion(fault['ctx']['tag'], kinds)}"
    if fault["type"] == "union_tag_not_found":
        kind = _first_kind(fault["loc"], schema)
        return f'{where}{key} has no kind. Say which one it is, as in {{ kind = "{kind}" }}.'
    if _is_in_categories(fault["loc"]):
        return f"{where}{_numbers_as_categories(fault, data)}"
    found = fault["input"]
    shown = repr(found) if isinstance(found, str | int | float | bool) else type(found).__name__
    return f"{where}{key} is {shown[:80]}: {fault['msg'][:1].lower()}{fault['msg'][1:]}."


def _located(loc: Place, data: Mapping[str, Any]) -> tuple[str, str]:
    """Return the column of a fault as the beginning of a sentence, empty outside of columns, and the dotted path."""
    path = [str(part) for part in loc if part not in KINDS]
    depth = _depth_of_column(loc)
    if depth is None:
        return "", ".".join(path)
    column, number = _value_at(loc[:depth], data), loc[depth - 1]
    name = column.get("name") if isinstance(column, Mapping) else None
    if isinstance(name, str):
        which = f"The column {name!r}"
    else:
        which = f"Column number {number + 1}" if isinstance(number, int) else f"The column {number}"
    # The rest of a path below a key names a tried type or an item's number, and neither is in the file.
    return f"{which}: ", str(loc[depth]) if depth < len(loc) else "it"


def _depth_of_column(loc: Place) -> int | None:
    """Return the number of parts of a path that lead to a declared column; None if it leads to no column."""
    for depth in range(1, len(loc)):
        if loc[depth - 1] in ("columns", "targets") and isinstance(loc[depth], int):
            return depth + 1
    return 2 if loc[:2] in (("table", "label"), ("table", "target")) else None


def _is_in_categories(loc: Place) -> bool:
    depth = _depth_of_column(loc)
    return depth is not None and len(loc) == depth + 2 and loc[depth] == "categories"


def _numbers_as_categories(fault: ErrorDetails, data: Mapping[str, Any]) -> str:
    given = _value_at(fault["loc"][:-1], data)
    assert isinstance(given, list)
    words = [value if isinstance(value, str) else json.dumps(value, default=str) for value in given]
    shown = ", ".join(json.dumps(word, ensure_ascii=False) for word in words[:_MOST_SHOWN])
    more = ", ..." if len(words) > _MOST_SHOWN else ""
    return (
        f"categories holds {fault['input']!r} without quotes. Categories are text, compared with the cells letter by "
        f"letter. Write them in quotes, as the file has them: categories = [{shown}{more}]."
    )


def _value_at(loc: Place, data: object) -> object:
    for part in loc:
        if isinstance(data, Mapping):
            data = data.get(part)
        elif isinstance(data, Sequence) and isinstance(part, int):
            data = data[part]
    return data


def _schemas_at(loc: Place, schema: type[BaseModel]) -> list[type[BaseModel]]:
    """Return the possible schemas of the table that holds the last key of a path: several if its kind is unknown."""
    found = [schema]
    for part in loc[:-1]:
        if isinstance(part, int):
            continue
        if part in KINDS:
            found = [one for one in found if part in _kinds(one)]
        else:
            fields = [one.model_fields[part] for one in found if part in one.model_fields]
            found = [below for field in fields for below in _schemas_in(field.annotation)]
    return found


def _first_kind(loc: Place, schema: type[BaseModel]) -> str:
    return next(kind for one in _schemas_at((*loc, "kind"), schema) for kind in _kinds(one))


def _kinds(schema: type[BaseModel]) -> tuple[str, ...]:
    return get_args(schema.model_fields["kind"].annotation) if "kind" in schema.model_fields else ()


def _schemas_in(annotation: object) -> Iterator[type[BaseModel]]:
    """Yield the table classes in a type annotation, inside optional, list and union types too."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _schemas_in(part)


def _is_list(annotation: object) -> bool:
    return getattr(annotation, "__origin__", None) is list
