"""Build the packaged Fashion-MNIST subset from the official files.

    python scripts/make_fashion_subset.py DATA_FOLDER [OUTPUT_FOLDER]

DATA_FOLDER holds FashionMNIST/raw/*-ubyte.gz. From the training file 1,000 images of each class are chosen, from the
test file 200 of each; the chosen images keep their official order. An image is chosen by the SHA-256 of its split,
class and position (privet.datasets.fixed_draw), so the choice is the same everywhere. The printed checksums are those
of the unpacked files, as privet/datasets/images.py lists them: how a file is packed depends on the version of xz.
"""

from __future__ import annotations

import hashlib
import lzma
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from privet.datasets.files import locate
from privet.datasets.fixed_draw import fixed_sample
from privet.datasets.images import FASHION_MNIST_FILES
from privet.datasets.readers import read_idx

SEED = "privet fashion_mnist_small"
IMAGES_PER_CLASS = {"train": 1_000, "test": 200}
NUM_CLASSES = 10
OUTPUT = Path(__file__).resolve().parent.parent / "src" / "privet" / "datasets" / "data"


def choose(labels: NDArray[np.uint8], split: str) -> list[int]:
    """Return the positions of the chosen images of one split, in ascending order."""
    chosen: list[int] = []
    for number in range(NUM_CLASSES):
        positions = np.flatnonzero(labels == number).tolist()
        chosen += fixed_sample(positions, IMAGES_PER_CLASS[split], seed=f"{SEED}/{split}/{number}")
    return sorted(chosen)


def idx_bytes(values: NDArray[np.uint8]) -> bytes:
    """Return the content of an IDX file of unsigned bytes."""
    header = bytes([0, 0, 0x08, values.ndim]) + b"".join(size.to_bytes(4, "big") for size in values.shape)
    return header + values.tobytes()


def write(path: Path, content: bytes) -> None:
    """Pack one file and print its size and the checksum of its content."""
    # No position bits: images have no period of four bytes, and unpacking is faster without them.
    filters = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 4, "lp": 0, "pb": 0}]
    path.write_bytes(lzma.compress(content, format=lzma.FORMAT_XZ, filters=filters))
    print(
        f"{path.name}: {path.stat().st_size} bytes packed, SHA-256 of the content {hashlib.sha256(content).hexdigest()}"
    )


def main() -> None:
    """Choose, pack and write both splits."""
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    root = Path(sys.argv[1])
    output = Path(sys.argv[2]) if len(sys.argv) == 3 else OUTPUT
    output.mkdir(parents=True, exist_ok=True)
    arrays: list[NDArray[np.uint8]] = []
    for file in FASHION_MNIST_FILES:
        path = locate(root, f"{file.folder}/{file.name}")
        if path is None:
            sys.exit(f"{file.folder}/{file.name}.gz is not in {root}.")
        arrays.append(read_idx(path, sha256=file.sha256))
    train_images, train_labels, test_images, test_labels = arrays
    for split, images, labels in (("train", train_images, train_labels), ("test", test_images, test_labels)):
        chosen = choose(labels, split)
        write(output / f"fashion-small-{split}-images-idx3-ubyte.xz", idx_bytes(images[chosen]))
        write(output / f"fashion-small-{split}-labels-idx1-ubyte.xz", idx_bytes(labels[chosen]))


if __name__ == "__main__":
    main()
