"""Recipes for a user's own data: declared, never learned from private records."""

from __future__ import annotations

import copy
import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from privet.errors import DataError, PrivetError, RecipeError
from privet.runs.recipes.own_data_defaults import Promise, default_delta, image_recipe, table_recipe
from privet.runs.recipes.recipe import Recipe
from privet.runs.recipes.table_schema import TableSchema, read_schema, schema_of_public_sample, schema_to_write

SCHEMA = """
train_size = 3_000
columns = [
  { name = "age", low = 0, high = 100 },
  { name = "town", categories = ["north", "south"] },
  { name = "income", categories = ["low", "high"] },
]
"""


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 10**12))
def test_the_default_delta_is_at_most_a_tenth_of_one_over_the_size_and_not_needlessly_small(size: int) -> None:
    delta = default_delta(size)
    assert delta <= min(1e-5, 0.1 / size * (1 + 1e-12))
    assert delta == 1e-5 or delta * 10 > 0.1 / size


@pytest.fixture
def schema(tmp_path: Path) -> TableSchema:
    (tmp_path / "schema.toml").write_text(SCHEMA)
    return read_schema(tmp_path / "schema.toml", targets=["income"])


@pytest.mark.parametrize("size", [100, 2_000, 50_000, 3_000_000])
def test_recipes_for_own_data_are_recipes_at_every_size(schema: TableSchema, size: int) -> None:
    promise = Promise(epsilon=2.0, train_size=size)
    made = table_recipe(promise, schema, name="own_x", train=Path("x.csv"), test=None, delimiter=",")
    recipe = Recipe.from_dict(made)
    assert recipe.info.train_size == size
    assert recipe.info.class_names == ("low", "high")
    assert not recipe.is_public
    images = image_recipe(
        promise, name="own_x", train=Path("x"), test=Path("y"), classes=("a", "b"), height=9, width=7, channels=3
    )
    assert Recipe.from_dict(images).info.input_shape == (3, 9, 7)


def test_fewer_images_learn_in_smaller_steps() -> None:
    rates = [
        image_recipe(
            Promise(epsilon=3.0, train_size=size),
            name="pets",
            train=Path("pets"),
            test=None,
            classes=("cat", "dog"),
            height=32,
            width=32,
            channels=3,
        )["training"]["optimizer"]["learning_rate"]
        for size in (100, 600, 2_000, 10_000, 1_000_000)
    ]
    assert rates == [0.1, 0.24, 0.8, 4.0, 4.0]  # 4 is that of the demo, which has 10,000 images


def test_a_size_that_no_private_model_can_live_on_is_refused() -> None:
    with pytest.raises(RecipeError, match="declared size is 40"):
        Promise(epsilon=1.0, train_size=40)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("columns = 3", "columns is 3"),
        ("colums = []", r"colums is not an option here. Did you mean 'columns'"),
        ("train_size = 500", "columns is missing. A schema needs it"),
        (SCHEMA.replace("income", "salary"), "does not declare the target 'income'"),
        (SCHEMA.replace("3_000", "0"), "train_size is 0"),
        ("columns = [", "not valid TOML"),
    ],
    ids=["no list", "unknown key", "no columns", "no target", "no records", "no toml"],
)
def test_a_wrong_schema_file_is_refused_with_its_fault(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "schema.toml").write_text(text)
    with pytest.raises(RecipeError, match=words):
        read_schema(tmp_path / "schema.toml", targets=["income"])


WRONG_COLUMNS = {
    "numbers as categories": (
        '{ name = "bought", categories = [0, 1] }',
        ("The column 'bought': categories holds 0 without quotes", 'categories = ["0", "1"]'),
    ),
    "many numbers as categories": (
        f'{{ name = "bought", categories = {list(range(30))} }}',
        ("The column 'bought'", '"6", "7", ...]'),
    ),
    "a word among numbers": (
        '{ name = "bought", categories = ["never", 1.5, true] }',
        ("categories holds 1.5", 'categories = ["never", "1.5", "true"]'),
    ),
    "mistyped key": ('{ name = "bought", low = 0, hi = 3 }', ("The column 'bought': hi", "Did you mean 'high'?")),
    "mistyped name": ('{ nam = "bought", low = 0, high = 3 }', ("Column number 3: nam", "Did you mean 'name'?")),
    "no name": ("{ low = 0, high = 3 }", ("Column number 3: name is missing",)),
    "text for a number": ('{ name = "bought", low = "0", high = 3 }', ("The column 'bought': low is '0'", "number")),
    "truth as default": (
        '{ name = "bought", low = 0, high = 3, default = true }',
        ("column 'bought': default is True",),
    ),
    "no table": ('"bought"', ("Column number 3: it is 'bought'",)),
}


@pytest.mark.parametrize("fault", WRONG_COLUMNS)
def test_a_fault_in_a_column_is_told_with_the_columns_name_and_how_to_write_it(tmp_path: Path, fault: str) -> None:
    column, words = WRONG_COLUMNS[fault]
    path = tmp_path / "schema.toml"
    path.write_text(SCHEMA.replace('  { name = "income"', f'  {column},\n  {{ name = "income"'))
    with pytest.raises(RecipeError) as caught:
        read_schema(path, targets=["income"])
    for word in words:
        assert word in str(caught.value)
    assert "columns.2" not in str(caught.value)


def test_columns_and_label_of_a_recipe_are_told_of_in_the_same_words(schema: TableSchema) -> None:
    values = table_recipe(
        Promise(epsilon=3.0, train_size=3_000), schema, name="own", train=Path("t"), test=None, delimiter=","
    )
    for place, name in ((("columns", 0), "age"), (("label",), "income")):
        wrong = copy.deepcopy(values)
        column = wrong["table"]
        for part in place:
            column = column[part]
        column["categories"] = [0, 1]
        with pytest.raises(RecipeError, match=f"The column '{name}': categories holds 0") as caught:
            Recipe.from_dict(wrong)
        assert 'categories = ["0", "1"]' in str(caught.value)
    del wrong["table"]["label"]["name"]
    with pytest.raises(RecipeError, match=r"The column label: name is missing"):
        Recipe.from_dict(wrong)


def test_a_public_sample_without_the_target_is_told_with_the_names_it_has(tmp_path: Path) -> None:
    sample = tmp_path / "public.csv"
    sample.write_text("age,town,bought\n1,n,0\n2,s,1\n")
    with pytest.raises(RecipeError, match=r"'label' once and names it 0 times. It names: 'age', 'town', 'bought'"):
        schema_of_public_sample(sample, private=tmp_path / "private.csv", targets=["label"], delimiter=",")
    with pytest.raises(RecipeError, match=r"Did you mean 'bought' for 'bougth'"):
        schema_of_public_sample(sample, private=tmp_path / "private.csv", targets=["bougth"], delimiter=",")


def test_a_target_of_many_words_is_no_class_and_one_of_many_numbers_is_a_regression(
    tmp_path: Path, schema: TableSchema
) -> None:
    sample = tmp_path / "public.csv"
    sample.write_text("age,price\n" + "".join(f"{n % 9},{n}.5\n" for n in range(60)))
    found = schema_of_public_sample(sample, private=tmp_path / "private.csv", targets=["price"], delimiter=",")
    assert (found.targets[0].low, found.targets[0].high, found.targets[0].categories) == (0.5, 59.5, None)
    sample.write_text("age,price\n" + "".join(f"{n % 9},word {n}\n" for n in range(60)))
    with pytest.raises(RecipeError, match=r"'price' has 60 different values.*low and high"):
        schema_of_public_sample(sample, private=tmp_path / "private.csv", targets=["price"], delimiter=",")
    values = table_recipe(
        Promise(epsilon=3.0, train_size=3_000), schema, name="own", train=Path("t"), test=None, delimiter=","
    )
    values["table"]["label"] = {"name": "price", "low": 0, "high": 60}
    with pytest.raises(RecipeError, match=r"'price' is declared by a range.*target in the place of label"):
        Recipe.from_dict(values)


def test_the_schema_to_write_says_what_an_empty_cell_becomes(tmp_path: Path) -> None:
    (tmp_path / "private.csv").write_text("age,income\n1,low\n")
    text = schema_to_write(tmp_path / "private.csv", targets=["income"], delimiter=",")
    assert "empty or unreadable cell becomes low, or the first category; say default = " in text


def test_a_public_sample_gives_ranges_and_categories(tmp_path: Path) -> None:
    sample = tmp_path / "public.csv"
    sample.write_text("id,age,town,same,income\n" + "".join(f"p{n},{n},{'ns'[n % 2]},1,{n % 3}\n" for n in range(60)))
    found = schema_of_public_sample(sample, private=tmp_path / "private.csv", targets=["income"], delimiter=",")
    assert found.targets[0].categories == ["0", "1", "2"]
    assert found.left_out == ("id", "same")
    age, town = found.columns
    assert (age.low, age.high) == (0.0, 59.0)
    assert town.categories == ["n", "s"]
    assert found.train_size is None


def test_the_private_file_is_never_taken_for_a_public_sample(tmp_path: Path) -> None:
    private, link = tmp_path / "private.csv", tmp_path / "link.csv"
    private.write_text("age,income\n1,low\n2,high\n")
    link.hardlink_to(private)
    for path in (private, link):
        with pytest.raises(RecipeError, match="holds the records to protect"):
            schema_of_public_sample(path, private=private, targets=["income"], delimiter=",")


def test_the_schema_to_write_leaves_out_a_name_that_stands_twice_and_guesses_ordered_words(tmp_path: Path) -> None:
    (tmp_path / "private.csv").write_text("age,pain,pain,severity,income\n1,2,3,mild,low\n")
    text = schema_to_write(tmp_path / "private.csv", targets=["income"], delimiter=",")
    assert text.count('"pain"') == text.count('stands in the header more than once: "pain"') == 1
    assert '{ name = "severity", ordered = ["?", "?"] }' in text


def test_the_schema_to_write_names_columns_and_depends_on_no_record(tmp_path: Path) -> None:
    one, other = tmp_path / "one.csv", tmp_path / "other.csv"
    one.write_text('age,"a ""b""",income\n33,Bob,low\n')
    other.write_text('age,"a ""b""",income\n99999,Eve,high\n1,2,3\n')
    text = schema_to_write(one, targets=["income"], delimiter=",")
    assert text == schema_to_write(other, targets=["income"], delimiter=",")
    filled = text.replace('["?", "?"]', '["low", "high"]').replace("low = ?", "low = 0").replace("high = ?", "high = 9")
    columns = tomllib.loads(filled.replace("train_size = ?", "train_size = 500"))["columns"]
    assert [column["name"] for column in columns] == ["age", 'a "b"', "income"]


def test_a_file_without_a_header_shows_no_cell_of_its_first_record(tmp_path: Path) -> None:
    path = tmp_path / "private.csv"
    path.write_text("33,secret,low\n34,hidden,high\n")
    with pytest.raises(DataError) as told:
        schema_to_write(path, targets=["income"], delimiter=",")
    assert "secret" not in str(told.value)


@settings(deadline=None, max_examples=50)
@given(content=st.binary(max_size=200))
def test_any_bytes_as_a_sample_are_a_schema_or_a_told_error(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("sample") / "public.csv"
    path.write_bytes(b"age,income\n" + content)
    try:
        found = schema_of_public_sample(path, private=path.parent / "absent", targets=["income"], delimiter=",")
    except PrivetError:
        return
    assert found.targets[0].name == "income"
    assert len(found.targets[0].categories or []) >= 2
