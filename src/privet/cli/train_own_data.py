"""``privet train`` on a user's own table, texts or images: the recipe built from the options."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from privet.cli import console
from privet.cli.table_address import address

if TYPE_CHECKING:
    from privet.runs.recipes.own_data_defaults import Persons, Promise
    from privet.runs.recipes.recipe import Recipe
    from privet.runs.recipes.table_schema import TableSchema

_TABLES = (
    *(".csv", ".csv.gz", ".csv.xz", ".tsv", ".tsv.gz", ".tsv.xz"),
    *(".parquet", ".arrow", ".feather", ".sqlite", ".sqlite3", ".db"),
)
_CHANGES_A_RECIPE = ("epsilon", "delta")
_RECORDS_PER_PERSON = 8


@dataclass(frozen=True, kw_only=True)
class OwnData:
    """The options about the user's own data; None for an option that was not given."""

    epsilon: float | None
    delta: float | None
    size: int | None
    test: str | None
    target: tuple[str, ...] | None
    schema: str | None
    public_sample: str | None
    delimiter: str | None
    decimal: str | None
    person: str | None
    persons: int | None
    records_per_person: int | None
    sample: str | None
    one_record_per_person: bool | None
    classes: str | None
    image_size: str | None
    channels: str | None
    text: str | None
    model: str | None
    weights: str | None
    train: str | None
    length: int | None
    table: str | None
    query: str | None
    key: str | None

    def recipe_for(self, path: str, overrides: Sequence[str], *, reads_records: bool = True) -> Recipe:
        """Return the recipe for a table, texts or a folder of images; remarks on stderr name the chosen defaults.

        Args:
            path: The table, the URL of a database, or the folder of images.
            overrides: ``a.b=value``, as for a recipe in a file.
            reads_records: False where the recipe is used with other records, and the file need not exist.

        Raises:
            RecipeError: a declaration is missing; the message shows the text to write.
        """
        from privet.runs.recipes.own_data_defaults import with_network
        from privet.runs.recipes.recipe_files import recipe_from_values

        network = None if self.text is not None else self._network()
        path = address(path, table=self.table, query=self.query, key=self.key)
        kind = self._images if Path(path).is_dir() else self._table if self.text is None else self._texts
        promise, values = kind(path)
        values = values if network is None else with_network(values, promise, network)
        recipe = recipe_from_values(values, overrides, folder=Path())
        if reads_records:
            self._ask_for_persons(path, recipe)
        if self.delta is None:
            own = recipe.own_data
            assert own is not None
            declared = f"{own.train_size:,} declared records" if self.persons is None else f"{self.persons:,} persons"
            console.remark(f"delta {recipe.privacy.delta:g}, the default for {declared}; --delta changes it.")
        _tell_about_labels(recipe)
        if self.test is None:
            console.remark("No test data (--test): the model will not be measured.")
            if recipe.table is not None:
                console.remark(
                    "Cells of training records that do not fit the schema are replaced without a warning, because a "
                    "warning would reveal private data. Test records that do not fit are refused with the reason, so a "
                    "--test file shows whether the schema is right."
                )
        return recipe

    def overrides(self) -> list[str]:
        """Return the changes to an ordinary recipe.

        Raises:
            UsageError: an option for own data was given.
        """
        for field in fields(self):
            if field.name not in _CHANGES_A_RECIPE and getattr(self, field.name) is not None:
                raise click.UsageError(
                    f"--{field.name.replace('_', '-')} is for a table or a folder of images, and this is a recipe. "
                    "Set it in the recipe, or with --set."
                )
        return [f"privacy.{name}={getattr(self, name)!r}" for name in _CHANGES_A_RECIPE if getattr(self, name)]

    def _promise(self, size: int | None) -> Promise:
        from privet.errors import RecipeError
        from privet.runs.recipes.own_data_defaults import Promise

        if self.epsilon is None:
            raise RecipeError("How strong should the guarantee be? Add --epsilon 3 (smaller is stronger).")
        if size is None:
            raise RecipeError(
                "About how many records does the data have? Add --size 2000: a public number, which may be rounded. "
                "privet does not count the records, because the exact number may itself be private."
            )
        return Promise(
            epsilon=self.epsilon,
            delta=self.delta,
            train_size=size,
            persons=self._persons(),
            one_record_per_person=bool(self.one_record_per_person),
        )

    def _network(self) -> dict[str, Any] | None:
        """Return the recipe's [network] table. Naming a file on the command line is consent to run it."""
        import hashlib

        if self.model is None:
            self._refuse(("weights", "train"), "goes with --model file.py:build")
            return None
        from privet.runs.consent import Code
        from privet.runs.weight_files import read_weights

        code = Code.read(self.model)
        code.allow()
        table = {
            "file": str(code.path),
            "function": code.function,
            "sha256": code.sha256,
            "train": self.train or ("all" if self.weights is None else "head"),
        }
        if self.weights is None:
            return table
        digest = hashlib.sha256(read_weights(self.weights)).hexdigest()
        return {**table, "weights": self.weights, "weights_sha256": digest}

    def _persons(self) -> Persons | None:
        from privet.errors import RecipeError
        from privet.runs.recipes.own_data_defaults import Persons

        if self.person is not None and self.one_record_per_person:
            raise click.UsageError("--person bounds the records of each, --one-record-per-person says one. Give one.")
        if self.person is None:
            self._refuse(("persons", "records_per_person", "sample"), "goes with --person COLUMN")
            return None
        if self.persons is None:
            raise RecipeError(
                "About how many persons are the records about? Add --persons 500: a public number, which may be "
                "rounded. privet does not count them, because the exact number may itself be private."
            )
        if self.records_per_person is None:
            console.remark(
                f"At most {_RECORDS_PER_PERSON} records of a person take part; --records-per-person changes it."
            )
        return Persons(
            column=self.person,
            num_persons=self.persons,
            max_records=_RECORDS_PER_PERSON if self.records_per_person is None else self.records_per_person,
            draws_records=self.sample == "records",
        )

    def _table(self, path: str) -> tuple[Promise, dict[str, Any]]:
        from privet.datasets.typed_tables import is_typed
        from privet.errors import RecipeError
        from privet.runs.recipes.own_data_defaults import table_recipe

        self._refuse(("classes", "image_size", "channels"), "is for images, and this is a table")
        self._refuse(("length",), "is for texts: name their column with --text")
        if self.target is None:
            raise RecipeError("Which column should the model predict? Add --target NAME.")
        if self.decimal is not None and is_typed(path):
            raise click.UsageError("--decimal is for text, and this table holds numbers as such. Remove it.")
        delimiter = self.delimiter or ("\t" if ".tsv" in Path(path).name.lower() else ",")
        schema = self._schema(path, self.target, delimiter)
        learned = next((one.name for one in (*schema.targets, *schema.columns) if one.name == self.person), None)
        if learned is not None:
            raise RecipeError(
                f"--person {learned} names the column of persons, and the schema declares it as a column to learn from "
                "or to predict. Remove it from the schema, or name another column."
            )
        promise = self._promise(self.size if self.size is not None else schema.train_size)
        return promise, table_recipe(
            promise,
            schema,
            name=_recipe_name(path),
            train=path,
            test=self.test,
            delimiter=delimiter,
            decimal=self.decimal or ".",
        )

    def _ask_for_persons(self, path: str, recipe: Recipe) -> None:
        """Refuse a table or texts with a column that seems to name persons, unless the user said what a record is.

        Guarantee: only the header is read.
        """
        from privet.datasets.header_hints import names_persons
        from privet.datasets.tables import read_header
        from privet.errors import RecipeError

        declared = recipe.file
        if declared is None or declared.says_what_a_record_is:
            return
        # A key is of one record each, so that it names nobody twice.
        learned = {*declared.predicted, *declared.inputs, self.key}
        header = read_header(path, targets=declared.predicted, delimiter=declared.delimiter)
        found = next((name for name in header if names_persons(name) and name not in learned), None)
        if found is not None:
            raise RecipeError(
                f"{path} has a column {found!r}, which seems to name whom a record is about. If somebody may have "
                f"several records, protect persons: --person {found} --persons 500. If nobody has two, declare it: "
                "--one-record-per-person. To protect records all the same: --set "
                f"{'texts' if self.text is not None else 'table'}.one_record_per_person=false."
            )

    def _schema(self, path: str, targets: tuple[str, ...], delimiter: str) -> TableSchema:
        from privet.errors import RecipeError
        from privet.runs.recipes.table_schema import read_schema, schema_of_public_sample, schema_to_write

        if self.schema is not None and self.public_sample is not None:
            raise click.UsageError("--schema and --public-sample both declare the columns. Give one of them.")
        if self.schema is not None:
            return _with_cost(read_schema(self.schema, targets=targets), self.schema)
        if self.public_sample is not None:
            schema = schema_of_public_sample(
                self.public_sample, private=path, targets=targets, delimiter=delimiter, decimal=self.decimal or "."
            )
            if schema.left_out:
                console.remark(f"Columns left out, constant or with too many words: {', '.join(schema.left_out)}.")
            return schema
        text = schema_to_write(path, targets=targets, delimiter=delimiter, person=self.person)
        raise RecipeError(
            "Ranges and categories must be declared, because learning them from the records would not be private. Save "
            "this as schema.toml, replace every ?, and add --schema schema.toml:\n\n"
            f"{text}\n\n"
            "Only the header of the file was read; column names are assumed to be public. If you have public records "
            "with the same columns, --public-sample FILE derives ranges and categories from them."
        )

    def _texts(self, path: str) -> tuple[Promise, dict[str, Any]]:
        """Return the recipe for a column of texts; nothing of the file is read."""
        from privet.runs.recipes.own_data_defaults import text_recipe
        from privet.runs.text_models import fingerprint, libraries

        self._refuse(
            ("schema", "public_sample", "decimal", "weights", "train", "image_size", "channels"),
            "is not for texts: their columns have no ranges, and an encoder has its own weights",
        )
        missing = [f"--{name}" for name in ("model", "target", "classes", "size", "epsilon") if not getattr(self, name)]
        if self.model is None or self.target is None or self.classes is None or missing:
            raise click.UsageError(
                f"Texts also need {', '.join(missing)}: the folder of an encoder, the column to predict, its classes "
                "as in bad,good, the approximate number of records and the guarantee. All are public."
            )
        if len(self.target) > 1:
            raise click.UsageError("A model of texts has one target. Give --target once.")
        promise = self._promise(self.size)
        libraries()  # so that nothing is promised where the packages for it are missing
        text, (target,) = self.text or "", self.target
        delimiter = self.delimiter or ("\t" if ".tsv" in Path(path).name.lower() else ",")
        return promise, text_recipe(
            promise,
            name=_recipe_name(path),
            train=path,
            test=self.test,
            columns=(text, target),
            classes=tuple(name.strip() for name in self.classes.split(",")),
            length=self.length or 128,
            delimiter=delimiter,
            encoder=self.model,
            sha256=fingerprint(Path(self.model)),
        )

    def _images(self, where: str) -> tuple[Promise, dict[str, Any]]:
        from privet.datasets.own.own_images import folder_classes
        from privet.errors import RecipeError
        from privet.runs.recipes.own_data_defaults import image_recipe

        path = Path(where)
        self._refuse(
            (
                "target",
                "schema",
                "public_sample",
                "delimiter",
                "decimal",
                "person",
                "persons",
                "records_per_person",
                "sample",
                "one_record_per_person",
                "text",
                "length",
            ),
            "is for a table, and this is a folder",
        )
        found = folder_classes(path) if self.classes is None else tuple(self.classes.split(","))
        if not found:
            raise RecipeError(_no_classes(path))
        if self.classes is None:
            console.remark(f"Classes, from the names of the sub-folders, assumed to be public: {', '.join(found)}.")
        height, width = _sides(self.image_size or "32x32")
        channels = {None: 3, "grey": 1, "colour": 3}[self.channels]
        test = None if self.test is None else Path(self.test)
        promise = self._promise(self.size)
        return promise, image_recipe(
            promise,
            name=_recipe_name(where),
            train=path,
            test=test,
            classes=found,
            height=height,
            width=width,
            channels=channels,
        )

    def _refuse(self, names: Sequence[str], reason: str) -> None:
        for name in names:
            if getattr(self, name) is not None:
                raise click.UsageError(f"--{name.replace('_', '-')} {reason}. Remove it.")


def _tell_about_labels(recipe: Recipe) -> None:
    """Say what becomes of training labels that match no class.

    Guarantee: a function of the declaration. That there are such labels is not told, because they are private.
    """
    from privet.datasets.tables import CategoryColumn

    labels = [] if recipe.texts is None else [recipe.texts.declared().label]
    if recipe.table is not None:
        labels = [one.column for one in recipe.table.declared().targets if isinstance(one.column, CategoryColumn)]
    for label in labels:
        console.remark(
            f"A training record whose {label.name!r} is none of {', '.join(map(repr, label.categories))} counts as "
            f"{label.default!r}, without a warning. Equal numbers match: 1.0 is 1."
        )


def _with_cost(schema: TableSchema, path: str) -> TableSchema:
    """Return a schema with what it cost, if it was released from private records; the ledger that it names is read."""
    if schema.release is None:
        return schema
    from privet.runs.schema_release import check_release

    return replace(schema, released=check_release(path, schema.release))


def is_own_data(path: str) -> bool:
    """Whether an argument names a table or a folder of images, and neither a recipe nor a run."""
    from privet.datasets.sql_tables import is_address

    return (
        is_address(path)
        or path.lower().endswith(_TABLES)
        or (Path(path).is_dir() and not (Path(path) / "recipe.toml").exists())
    )


def _no_classes(path: Path) -> str:
    from privet.runs.run_files import RunFiles

    if RunFiles(folder=path).ledger.exists():
        return f"{path} is the folder of a run, not data. The program that started the run can resume it."
    return (
        f"{path} has no sub-folders. A folder of images needs one per class, such as {path / 'cat'} and "
        f"{path / 'dog'}; their names are the classes."
    )


def table_name(path: str) -> str:
    """Return a name for the data: that of the file or of the table in a database, without special characters."""
    from privet.datasets.sql_tables import SqlTable, is_address

    stem = (SqlTable.at(path).table or "query") if is_address(path) else Path(path).resolve().name.split(".")[0]
    return re.sub(r"[^A-Za-z0-9_-]+", "_", stem).strip("_") or "data"


def _recipe_name(path: str) -> str:
    from privet.runs.recipes.recipe import OWN_PREFIX

    return OWN_PREFIX + table_name(path)


def _sides(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,4})x([0-9]{1,4})", text)
    if found is None:
        raise click.UsageError(f"--image-size is HEIGHTxWIDTH in pixels, such as 32x32; got {text!r}.")
    return int(found[1]), int(found[2])
