"""The declaration of a folder of images: classes, size and channels, known without opening an image."""

from __future__ import annotations

from dataclasses import dataclass, replace

from privet import checks
from privet.datasets.info import DatasetInfo, Normalisation
from privet.datasets.own.facts import owners_facts
from privet.errors import ArgumentError
from privet.vocabulary import Unit

_LARGEST_SIDE = 1024


@dataclass(frozen=True, kw_only=True)
class DeclaredImages:
    """The declaration of a folder with one sub-folder per class.

    Every image is resized to the declared size: sizes of files would be facts about records.

    Attributes:
        classes: Names of the sub-folders, in the order of their codes. They are public.
        height: Height of the network's input in pixels.
        width: Width of the network's input in pixels.
        channels: 1 for grey, 3 for colour.
        one_record_per_person: Declares that each image contains all data of one person.
    """

    classes: tuple[str, ...]
    height: int
    width: int
    channels: int
    one_record_per_person: bool = False

    def __post_init__(self) -> None:
        if len(self.classes) < 2 or len(set(self.classes)) != len(self.classes):
            raise ArgumentError("A folder of images needs at least two classes, each named once.")
        for name in self.classes:
            if not name or name.startswith(".") or "/" in name or "\\" in name or "\0" in name:
                raise ArgumentError(f"The class {name!r} is not the name of a sub-folder.")
        for side in ("height", "width"):
            if checks.count(side, getattr(self, side)) > _LARGEST_SIDE:
                raise ArgumentError(f"{side} is {getattr(self, side)}; at most {_LARGEST_SIDE} pixels are read.")
        if self.channels not in (1, 3):
            raise ArgumentError(f"channels must be 1 (grey) or 3 (colour), got {self.channels!r}.")

    @property
    def units(self) -> tuple[Unit, ...]:
        """The units of privacy that one image is declared to be."""
        return (Unit.RECORD, Unit.PERSON) if self.one_record_per_person else (Unit.RECORD,)

    @property
    def input_shape(self) -> tuple[int, int, int]:
        """Channels, height and width of every example."""
        return (self.channels, self.height, self.width)

    def info(self, name: str, *, train_size: int, test_size: int) -> DatasetInfo:
        """Return the facts about the images; they are not public.

        Args:
            name: Name of the data set.
            train_size: Declared number of training images.
            test_size: Declared number of test images; 0 for none.
        """
        facts = owners_facts(
            name, "images", sizes=(train_size, test_size), input_shape=self.input_shape, class_names=self.classes
        )
        return replace(
            facts,
            normalisations=(
                Normalisation(name="unit_interval", shift=(0.0,), scale=(1.0,), bounds=(0.0, 1.0)),
                Normalisation(name="centred", shift=(0.5,), scale=(0.5,), bounds=(-1.0, 1.0)),
            ),
        )
