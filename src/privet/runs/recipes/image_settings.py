"""The table of a recipe that declares the user's own images, as plain values."""

from __future__ import annotations

from privet.datasets.info import DatasetInfo
from privet.datasets.own.declared_images import DeclaredImages
from privet.errors import ArgumentError, RecipeError
from privet.runs.recipes.training_settings import Count, Table
from privet.vocabulary import Unit


class ImageSettings(Table):
    """The user's own images: folders with one sub-folder per class, and their declared facts.

    Attributes:
        train: The folder of the images to protect; relative to the recipe's folder.
        test: The folder of the images to measure on, which are not protected. Without it nothing is measured.
        train_size: Declared number of training images. Never counted: it may itself be private.
        test_size: Declared number of test images; used only to estimate memory.
        classes: The names of the sub-folders, which are public.
        height: Height in pixels to which every image is resized.
        width: Width in pixels to which every image is resized.
        channels: 1 for grey, 3 for colour.
        one_record_per_person: Declares that each image holds everything about one person. The guarantee lists
            it as an assumption.
    """

    train: str
    test: str | None = None
    train_size: Count
    test_size: Count | None = None
    classes: list[str]
    height: Count
    width: Count
    channels: Count
    one_record_per_person: bool | None = None

    def declared(self) -> DeclaredImages:
        """Return the declaration.

        Raises:
            RecipeError: classes or sizes are impossible.
        """
        try:
            return DeclaredImages(
                classes=tuple(self.classes),
                height=self.height,
                width=self.width,
                channels=self.channels,
                one_record_per_person=bool(self.one_record_per_person),
            )
        except ArgumentError as error:
            raise RecipeError(f"images: {error}") from error

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units of privacy that one image is declared to be."""
        return self.declared().units

    def info(self, name: str) -> DatasetInfo:
        """Return the public facts about the data."""
        return self.declared().info(name, train_size=self.train_size, test_size=self.test_size or 0)
