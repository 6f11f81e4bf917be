"""A user's own images: one sub-folder per class, one file per record.

No training image can raise an error: a file that is no image, is too large, or that the decoder rejects silently
becomes a black image. Test images are read strictly, because a silently replaced image would make the measures wrong.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from privet.datasets.arrays import ArrayDataset, Split
from privet.datasets.info import DatasetInfo, Normalisation
from privet.datasets.own.declared_images import DeclaredImages
from privet.errors import DataError
from privet.vocabulary import OneItem

if TYPE_CHECKING:
    from PIL import Image as PillowImage

MAX_FILE_BYTES = 2**25
MAX_PIXELS = 2**26
# Only the name decides whether a file is a record, not its content.
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
# Only these decoders read files.
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
_DEEP_GREY = ("I;16", "I;16B", "I;16L", "I")


def folder_classes(folder: str | os.PathLike[str]) -> tuple[str, ...]:
    """Return the sorted names of the sub-folders; an empty one is a class too.

    Names of folders are public: adding or removing an image does not change them.

    Raises:
        DataError: the folder cannot be read.
    """
    try:
        with os.scandir(folder) as entries:
            return tuple(sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith(".")))
    except OSError as error:
        raise DataError(f"The folder {folder} cannot be read: {error.strerror}.") from None


def load_declared_images(
    declared: DeclaredImages,
    info: DatasetInfo,
    normalisation: Normalisation,
    *,
    train: str | os.PathLike[str],
    test: str | os.PathLike[str] | None,
) -> Split:
    """Read both parts of a declared folder of images; without a test folder the second part is empty.

    Guarantee: one file of the training folder determines one training record and nothing else. A file that is no image
    silently becomes a black image. Test images are not protected, and an unreadable one is refused.

    Raises:
        DataError: Pillow is missing, the folder of a class is missing, or a test image cannot be read.
    """
    _require_pillow()
    measured = None if test is None else read_test_images(test, declared, normalisation)
    learned = replace(_read(train, declared, normalisation, strict=False), one_item=OneItem(units=declared.units))
    nothing = ArrayDataset(features=learned.features[:0], labels=learned.labels[:0])
    return Split(train=learned, test=nothing if measured is None else measured, info=info, normalisation=normalisation)


def read_test_images(
    folder: str | os.PathLike[str], declared: DeclaredImages, normalisation: Normalisation
) -> ArrayDataset:
    """Read a folder of images as test data.

    Raises:
        DataError: Pillow is missing, the folder of a class is missing, there are no images, or one cannot be read.
    """
    _require_pillow()
    found = _read(folder, declared, normalisation, strict=True)
    if not len(found):
        raise DataError(f"{folder} holds no images to measure. Check the path.")
    return found


def read_unlabelled_images(
    folder: str | os.PathLike[str], declared: DeclaredImages, normalisation: Normalisation
) -> tuple[tuple[Path, ...], Tensor]:
    """Return the paths and the images of a folder and of all its sub-folders.

    Raises:
        DataError: Pillow is missing, there are no images, or one cannot be read.
    """
    _require_pillow()
    root = Path(folder)
    files = [path for place in (root, *(root / name for name in folder_classes(root))) for path in _images(place)]
    if not files:
        raise DataError(f"{folder} holds no images. Check the path.")
    return tuple(files), _pixels(files, declared, normalisation, strict=True)


def _require_pillow() -> None:
    if find_spec("PIL") is None:
        raise DataError("Reading images needs Pillow. Install it with: pip install 'privet[images]'.")


def _read(
    folder: str | os.PathLike[str], declared: DeclaredImages, normalisation: Normalisation, *, strict: bool
) -> ArrayDataset:
    files = [(path, code) for code, name in enumerate(declared.classes) for path in _images(Path(folder) / name)]
    features = _pixels([path for path, _ in files], declared, normalisation, strict=strict)
    return ArrayDataset(features=features, labels=torch.tensor([code for _, code in files], dtype=torch.int64))


def _pixels(files: Sequence[Path], declared: DeclaredImages, normalisation: Normalisation, *, strict: bool) -> Tensor:
    pixels = np.zeros((len(files), *declared.input_shape), dtype=np.uint8)
    for place, path in enumerate(files):
        image = decode_image(path, declared)
        if image is not None:
            pixels[place] = image
        elif strict:
            raise DataError(f"{path} is not an image that can be read. Replace or remove it.")
    return normalisation.apply_(torch.from_numpy(pixels).to(torch.float32).div_(255))


def _images(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries]
    except OSError as error:
        raise DataError(
            f"The folder of the class {folder.name!r} cannot be read: {error.strerror}. Each class needs a sub-folder, "
            "which may be empty."
        ) from None
    return [folder / name for name in sorted(names) if name.lower().endswith(SUFFIXES) and not name.startswith(".")]


def decode_image(path: Path, declared: DeclaredImages) -> NDArray[np.uint8] | None:
    """Return one image as ``[channels, height, width]`` bytes, or None if the file is no readable image.

    Guarantee: the result depends on this file only. No content raises an error or shows a warning.

    Edge cases: links, pipes, files above 32 MiB and images above 64 million pixels are not read; an animation gives its
    first frame; transparency is dropped.
    """
    try:
        # A warning of the decoder would reveal something about a record.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            content = _content(path)
            return None if content is None else _decoded(content, declared)
    except Exception:  # noqa: BLE001 -- a decoder may raise anything on bytes it does not expect, and no record may raise
        return None


def _content(path: Path) -> bytes | None:
    # Non-blocking: a pipe would wait for a writer forever.
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return None
        content = file.read(MAX_FILE_BYTES + 1)
    return content if len(content) <= MAX_FILE_BYTES else None


def _decoded(content: bytes, declared: DeclaredImages) -> NDArray[np.uint8] | None:
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
        if image.width * image.height > MAX_PIXELS:
            return None
        image.load()
        upright = ImageOps.exif_transpose(image)
    wanted = "L" if declared.channels == 1 else "RGB"
    size = (declared.width, declared.height)
    resized = _eight_bits(upright).convert(wanted).resize(size, Image.Resampling.BILINEAR)
    pixels = np.asarray(resized, dtype=np.uint8).reshape(declared.height, declared.width, declared.channels)
    return pixels.transpose(2, 0, 1)


def _eight_bits(image: PillowImage.Image) -> PillowImage.Image:
    """Scale grey images of sixteen bits, which Pillow would clip at 255."""
    from PIL import Image

    if image.mode not in _DEEP_GREY:
        return image
    return Image.fromarray((np.clip(np.asarray(image, dtype=np.int64), 0, 65_535) // 257).astype(np.uint8))
