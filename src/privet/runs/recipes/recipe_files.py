"""Recipes from the package or from a file, with overrides; the contents of a file are not trusted."""

from __future__ import annotations

import math
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from privet.datasets.sql_tables import SqlTable, is_address
from privet.errors import RecipeError
from privet.mechanism.codec import suggestion
from privet.runs.recipes.recipe import Recipe

MAX_BYTES = 1_000_000
LARGEST_INTEGER = 2**53
# Keys of tables of a recipe that name files or folders.
_FILES = {
    "table": ("train", "test"),
    "images": ("train", "test"),
    "texts": ("train", "test"),
    "network": ("file", "weights"),
    "encoder": ("folder",),
}
_BARE_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_./:+-]*")
_KEY = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


def packaged_recipes() -> dict[str, str]:
    """Return the recipes that come with the package: name to TOML text, sorted; records begin with ``records/``."""
    folder = resources.files("privet") / "recipes"
    records = {f"records/{name}": text for name, text in _texts(folder / "records").items()}
    return dict(sorted({**_texts(folder), **records}.items()))


def recipe_templates() -> dict[str, str]:
    """Return the templates of recipes, with a comment on every value: kind to TOML text."""
    return _texts(resources.files("privet") / "recipes" / "templates")


def _texts(folder: Traversable) -> dict[str, str]:
    found = [entry for entry in folder.iterdir() if entry.name.endswith(".toml")]
    return {entry.name.removesuffix(".toml"): entry.read_text("utf-8") for entry in sorted(found, key=lambda e: e.name)}


def load_recipe(name_or_path: str | Path, overrides: Sequence[str] = (), *, quick: bool = False) -> Recipe:
    """Load a recipe by the name of a packaged one or by its path.

    Args:
        name_or_path: ``demo``, or ``path/to/recipe.toml``. A packaged name wins over a file without a suffix.
        overrides: ``a.b=value`` in TOML syntax; bare words are text; an empty value removes the key.
        quick: Apply the recipe's ``quick`` table, a small version for a first try.

    Raises:
        RecipeError: the recipe cannot be found or read, or is not valid.
    """
    data = _parsed(recipe_text(name_or_path), str(name_or_path))
    small = data.pop("quick", None)
    if quick:
        if not isinstance(small, Mapping):
            raise RecipeError(f"{name_or_path} has no [quick] table, so there is no quick version of it.")
        data = _merged(data, small)
    return recipe_from_values(data, overrides, folder=None if _is_packaged(name_or_path) else Path(name_or_path).parent)


def recipe_from_values(values: Mapping[str, Any], overrides: Sequence[str] = (), *, folder: Path | None) -> Recipe:
    """Return the recipe of plain values with overrides.

    Args:
        values: Plain values, as in a TOML file.
        overrides: As in :func:`load_recipe`.
        folder: Base folder of relative paths to the user's own data; None leaves paths unchanged.

    Raises:
        RecipeError: the recipe is not valid.
    """
    data = deepcopy(dict(values))
    for override in overrides:
        _apply(data, override)
    if folder is not None:
        for name, keys in _FILES.items():
            _anchor(data.get(name), folder, keys)
    return Recipe.from_dict(data)


def read_values(path: str | Path) -> dict[str, Any]:
    """Read a TOML file of plain values with the checks of recipe files.

    Raises:
        RecipeError: it cannot be read, or holds numbers that other TOML readers may read differently.
    """
    return _parsed(_read(Path(path)), str(path))


def _is_packaged(name_or_path: str | Path) -> bool:
    return isinstance(name_or_path, str) and name_or_path in packaged_recipes()


def _anchor(table: object, folder: Path, keys: Sequence[str]) -> None:
    """Make the files of a table absolute, so that the copy of the recipe in a run's folder names the same ones."""
    if not isinstance(table, dict):
        return
    for key in keys:
        where = table.get(key)
        if isinstance(where, str):
            table[key] = SqlTable.at(where).anchored(folder).address if is_address(where) else _absolute(folder / where)


def _absolute(path: Path) -> str:
    """Return the absolute path of a file without "..", with symbolic links unresolved."""
    given = path.absolute()
    plain = Path(os.path.normpath(given))
    # After a symbolic link to a folder, ".." is not the folder before it in the path.
    leads_elsewhere = _exists(given) and not (_exists(plain) and os.path.samefile(given, plain))
    return str(given if leads_elsewhere else plain)


def recipe_text(name_or_path: str | Path) -> str:
    """Return a recipe's TOML text as it is stored."""
    packaged = packaged_recipes()
    if isinstance(name_or_path, str) and name_or_path in packaged:
        return packaged[name_or_path]
    if isinstance(name_or_path, str) and is_address(name_or_path):
        # Not shown: it may hold a password.
        raise RecipeError(
            "This names a database, and a recipe is asked for. Train on its records with: privet train URL --table "
            "NAME --target COLUMN --epsilon 3; or name it in a recipe's [table]: privet init tabular."
        )
    path = Path(name_or_path)
    looks_like_a_name = path.name == str(name_or_path) and path.suffix == ""
    if looks_like_a_name and not _exists(path):
        raise RecipeError(
            f"There is no recipe '{name_or_path}'. No file or folder has that name either. "
            f"{suggestion(str(name_or_path), list(packaged))}"
        )
    return _read(path)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _read(path: Path) -> str:
    try:
        if path.is_dir():
            raise RecipeError(f"{path} is a folder. Name a TOML file, or a run's recipe: {path / 'recipe.toml'}.")
        if path.suffix.lower() in (".csv", ".tsv"):
            # Not parsed: the parser's error message could quote a private record.
            raise RecipeError(
                f"{_printable(path)} is a table, not a recipe. Train on it with: privet train FILE --target COLUMN "
                "--epsilon 3; or declare it in a recipe: privet init tabular."
            )
        if not path.is_file():
            raise RecipeError(f"There is no recipe file {path}. List the packaged recipes with: privet recipes ls.")
        if path.stat().st_size > MAX_BYTES:
            raise RecipeError(f"{path} is larger than {MAX_BYTES:,} bytes, which no recipe is.")
        return path.read_bytes()[: MAX_BYTES + 1].decode("utf-8")
    except UnicodeDecodeError:
        raise RecipeError(f"{path} is not UTF-8 text, so it is not TOML. Save it as UTF-8.") from None
    except (OSError, ValueError) as error:
        if isinstance(error, RecipeError):
            raise
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise RecipeError(f"The recipe {_printable(path)} cannot be read: {reason}.") from None


def _printable(path: Path) -> str:
    # Control characters in a name must not reach a terminal.
    return str(path).encode("unicode_escape").decode("ascii")


def _parsed(text: str, where: str) -> dict[str, Any]:
    try:
        data = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "tables or lists are nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RecipeError(f"{where} is not valid TOML: {reason}.") from None
    _check_numbers(data, "")
    return data


def _check_numbers(value: object, path: str) -> None:
    """Refuse numbers that other TOML readers may read differently."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            _check_numbers(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_numbers(item, f"{path}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise RecipeError(f"{path} is {value}. Recipes hold finite numbers only.")
    elif isinstance(value, int) and not isinstance(value, bool) and abs(value) > LARGEST_INTEGER:
        raise RecipeError(f"{path} is a whole number beyond 2**53, which not every reader keeps exactly.")


def _merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    result = dict(base)
    for key, value in changes.items():
        below = result.get(key)
        # A piece of another kind has other options, so it replaces the table.
        is_merged = isinstance(below, Mapping) and isinstance(value, Mapping) and "kind" not in value
        result[key] = _merged(below, value) if is_merged and isinstance(below, Mapping) else value
    return result


def _apply(data: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    key, text = key.strip(), text.strip()
    if not separator or not _KEY.fullmatch(key):
        raise RecipeError(f"--set takes key=value with a dotted key, such as privacy.epsilon=2.0; got {override!r}.")
    *parents, last = key.split(".")
    table = data
    for depth, part in enumerate(parents):
        below = table.setdefault(part, {})
        if not isinstance(below, dict):
            raise RecipeError(f"--set {key}: {'.'.join(parents[: depth + 1])} is a value, not a table.")
        table = below
    if text == "":
        if last not in table:
            raise RecipeError(f"--set {key}= would remove a key that the recipe does not have.")
        del table[last]
        return
    table[last] = _value(key, text)


def _value(key: str, text: str) -> Any:
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        if _BARE_WORD.fullmatch(text) or is_address(text):
            return text
        raise RecipeError(f"--set {key}: {text!r} is not a TOML value. Put text with spaces in quotes.") from None
    if set(parsed) != {"value"}:
        raise RecipeError(f"--set {key}: give one value, got several lines.")
    _check_numbers(parsed["value"], key)
    return parsed["value"]
