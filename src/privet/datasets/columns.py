"""The declared columns of the three tables: published ranges and categories, never computed from the rows.

Categories of Adult are those of its documentation (adult.names), with ``?`` for a missing answer. Every published row
lies within the ranges; other values are clamped.
"""

from __future__ import annotations

from privet.datasets.encoding import declared_ranges, encoded_names
from privet.datasets.info import DatasetInfo, Normalisation
from privet.datasets.tables import CategoryColumn, CsvSchema, NumberColumn


def _number(name: str, low: float, high: float) -> NumberColumn:
    return NumberColumn(name=name, low=low, high=high, default=low)


def _category(name: str, words: str, *, default: str) -> CategoryColumn:
    return CategoryColumn(name=name, categories=tuple(words.split()), default=default)


def _ranges(low: tuple[float, ...], high: tuple[float, ...]) -> Normalisation:
    scale = tuple(top - bottom for bottom, top in zip(low, high, strict=True))
    return Normalisation(name="unit_interval", shift=low, scale=scale, bounds=(0.0, 1.0))


CALIFORNIA_SCHEMA = CsvSchema(
    columns=(
        _number("longitude", -125.0, -114.0),
        _number("latitude", 32.0, 42.0),
        _number("housing_median_age", 0.0, 60.0),
        _number("total_rooms", 0.0, 40_000.0),
        _number("total_bedrooms", 0.0, 7_000.0),
        _number("population", 0.0, 40_000.0),
        # Other columns are divided by households, so the smallest value is one.
        _number("households", 1.0, 7_000.0),
        _number("median_income", 0.0, 16.0),
        _number("median_house_value", 0.0, 500_001.0),
    )
)

CALIFORNIA_HOUSING = DatasetInfo(
    name="california_housing",
    input_shape=(8,),
    train_size=16_512,
    test_size=4_128,
    licence="none stated; derived from the 1990 United States census",
    source="R. K. Pace, R. Barry (1997), Sparse spatial autoregressions; StatLib, http://lib.stat.cmu.edu/datasets",
    public=True,
    feature_names=(
        "median_income",
        "house_age",
        "average_rooms",
        "average_bedrooms",
        "population",
        "average_occupancy",
        "latitude",
        "longitude",
    ),
    normalisations=(
        _ranges(
            (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 32.0, -125.0),
            # A few block groups (holiday homes, barracks) lie far above these ranges and are clamped.
            (15.0, 52.0, 15.0, 3.0, 8_000.0, 8.0, 42.0, -114.0),
        ),
        Normalisation(
            name="standardized",
            shift=(3.87067, 28.6395, 5.42900, 1.09668, 1_425.48, 3.07066, 35.6319, -119.570),
            scale=(1.89978, 12.5853, 2.47411, 0.473899, 1_132.43, 10.3858, 2.13590, 2.00348),
        ),
    ),
)

_WINE_COLUMNS = (
    _number("fixed acidity", 0.0, 20.0),
    _number("volatile acidity", 0.0, 2.0),
    _number("citric acid", 0.0, 1.0),
    _number("residual sugar", 0.0, 20.0),
    _number("chlorides", 0.0, 1.0),
    _number("free sulfur dioxide", 0.0, 100.0),
    _number("total sulfur dioxide", 0.0, 300.0),
    _number("density", 0.98, 1.01),
    _number("pH", 2.5, 4.5),
    _number("sulphates", 0.0, 2.5),
    _number("alcohol", 8.0, 15.0),
)
WINE_SCHEMA = CsvSchema(columns=(*_WINE_COLUMNS, _number("quality", 0.0, 10.0)), delimiter=";")

WINE_RED = DatasetInfo(
    name="wine_red",
    input_shape=(11,),
    train_size=1_279,
    test_size=320,
    licence="CC BY 4.0",
    source="P. Cortez et al. (2009), Wine quality; UCI Machine Learning Repository, winequality-red.csv",
    public=True,
    feature_names=tuple(column.name for column in _WINE_COLUMNS),
    normalisations=(
        _ranges(tuple(column.low for column in _WINE_COLUMNS), tuple(column.high for column in _WINE_COLUMNS)),
        Normalisation(
            name="standardized",
            shift=(8.3196, 0.52782, 0.27098, 2.5388, 0.087467, 15.875, 46.468, 0.996747, 3.3111, 0.65815, 10.423),
            scale=(1.7406, 0.17900, 0.19474, 1.4095, 0.047051, 10.457, 32.885, 0.00188674, 0.15434, 0.16945, 1.0653),
        ),
    ),
)

ADULT_FEATURES: tuple[NumberColumn | CategoryColumn, ...] = (
    _number("age", 0.0, 100.0),
    _category(
        "workclass",
        "Private Self-emp-not-inc Self-emp-inc Federal-gov Local-gov State-gov Without-pay Never-worked ?",
        default="?",
    ),
    _number("fnlwgt", 0.0, 1_500_000.0),
    _category(
        "education",
        "Bachelors Some-college 11th HS-grad Prof-school Assoc-acdm Assoc-voc 9th 7th-8th 12th Masters 1st-4th 10th "
        "Doctorate 5th-6th Preschool",
        default="HS-grad",
    ),
    _number("education_num", 1.0, 16.0),
    _category(
        "marital_status",
        "Married-civ-spouse Divorced Never-married Separated Widowed Married-spouse-absent Married-AF-spouse",
        default="Never-married",
    ),
    _category(
        "occupation",
        "Tech-support Craft-repair Other-service Sales Exec-managerial Prof-specialty Handlers-cleaners "
        "Machine-op-inspct Adm-clerical Farming-fishing Transport-moving Priv-house-serv Protective-serv "
        "Armed-Forces ?",
        default="?",
    ),
    _category("relationship", "Wife Own-child Husband Not-in-family Other-relative Unmarried", default="Not-in-family"),
    _category("race", "White Asian-Pac-Islander Amer-Indian-Eskimo Other Black", default="Other"),
    _category("sex", "Female Male", default="Female"),
    _number("capital_gain", 0.0, 100_000.0),
    _number("capital_loss", 0.0, 5_000.0),
    _number("hours_per_week", 0.0, 100.0),
    _category(
        "native_country",
        "United-States Cambodia England Puerto-Rico Canada Germany Outlying-US(Guam-USVI-etc) India Japan Greece South "
        "China Cuba Iran Honduras Philippines Italy Poland Jamaica Vietnam Mexico Portugal Ireland France "
        "Dominican-Republic Laos Ecuador Taiwan Haiti Columbia Hungary Guatemala Nicaragua Scotland Thailand "
        "Yugoslavia El-Salvador Trinadad&Tobago Peru Hong Holand-Netherlands ?",
        default="?",
    ),
)
_ADULT_INCOMES = ("<=50K", ">50K")


def adult_schema(*, income_suffix: str) -> CsvSchema:
    """Return the schema of one Adult file; the official test file ends its labels with a full stop."""
    incomes = tuple(f"{income}{income_suffix}" for income in _ADULT_INCOMES)
    income = CategoryColumn(name="income", categories=incomes, default=incomes[0])
    return CsvSchema(columns=(*ADULT_FEATURES, income), has_header=False, comment_prefix="|")


ADULT = DatasetInfo(
    name="adult",
    num_classes=2,
    input_shape=(108,),
    class_names=_ADULT_INCOMES,
    train_size=32_561,
    test_size=16_281,
    licence="CC BY 4.0",
    source="B. Becker, R. Kohavi (1996), Adult; UCI Machine Learning Repository, adult.data and adult.test",
    public=True,
    feature_names=encoded_names(ADULT_FEATURES),
    normalisations=(declared_ranges(ADULT_FEATURES),),
)
