"""The facts about records of a user's own, which are not public."""

from __future__ import annotations

from privet import checks
from privet.datasets.info import DatasetInfo


def owners_facts(
    name: str, what: str, *, sizes: tuple[int, int], input_shape: tuple[int, ...], class_names: tuple[str, ...]
) -> DatasetInfo:
    """Return what is declared of a user's own records.

    Args:
        name: Name of the data set.
        what: What the records are, in a word or two.
        sizes: Declared numbers of training and test records; 0 for no test records.
        input_shape: Shape of one record.
        class_names: Declared classes; none for other targets.
    """
    return DatasetInfo(
        name=name,
        num_classes=len(class_names) or None,
        input_shape=input_shape,
        class_names=class_names,
        train_size=checks.count("train_size", sizes[0]),
        test_size=checks.count("test_size", sizes[1], minimum=0),
        licence="the owner's",
        source=f"{what} of the owner's, declared in the recipe",
        public=False,
    )
