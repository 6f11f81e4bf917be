"""The tables of a recipe that declare the user's own texts, and the encoder that reads them, as plain values."""

from __future__ import annotations

from privet.datasets.info import DatasetInfo
from privet.datasets.own.declared_texts import DeclaredTexts
from privet.errors import ArgumentError, RecipeError
from privet.runs.recipes.file_settings import FileSettings, Name
from privet.runs.recipes.network_settings import Digest
from privet.runs.recipes.training_settings import Count, Table

OWN_ENCODER = "own_encoder"
"""The name under ``model`` of a recipe with an [encoder] table."""


class TextSettings(FileSettings):
    """The user's own texts with classes: two columns of a table.

    Attributes:
        text: The column of the texts.
        target: The column of the classes.
        classes: The classes, which are public.
        length: Declared tokens of a record; longer texts are cut.
    """

    text: Name
    target: Name
    classes: list[str]
    length: Count = 128

    def declared(self) -> DeclaredTexts:
        """Return the declaration.

        Raises:
            RecipeError: columns, classes or length are impossible.
        """
        try:
            return DeclaredTexts(
                text=self.text,
                target=self.target,
                classes=tuple(self.classes),
                length=self.length,
                delimiter=self.delimiter,
                ownership=self.ownership,
            )
        except ArgumentError as error:
            raise RecipeError(f"texts: {error}") from error

    @property
    def inputs(self) -> tuple[str, ...]:
        """The column of the texts."""
        return (self.text,)

    @property
    def predicted(self) -> tuple[str, ...]:
        """The column of the classes."""
        return (self.target,)

    def info(self, name: str) -> DatasetInfo:
        """Return the public facts about the data."""
        return self.declared().info(name, train_size=self.train_size, test_size=self.test_size or 0)


class EncoderSettings(Table):
    """An encoder of transformers in a local folder, to which adapters and a new head are trained.

    Attributes:
        folder: The folder, with tokenizer and weights in safetensors; relative to the recipe's folder.
        sha256: Fingerprint of its files, which are refused if they have another one.
        adapter_rank: Rank of the adapters at every linear layer.
    """

    folder: str
    sha256: Digest
    adapter_rank: Count = 8

    @property
    def title(self) -> str:
        """The name of the folder, without the folders above it."""
        return self.folder.replace(chr(92), "/").rstrip("/").rpartition("/")[2] or self.folder

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What the guarantee of a run with this encoder rests on."""
        return ("the pretrained encoder and its tokenizer were not made from these records",)
