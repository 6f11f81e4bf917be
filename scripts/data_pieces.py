"""Carry data files to another machine in pieces of limited size, and put them together there.

Some machines with an accelerator take a limited number of bytes at a time and have no network. This script packs files
of a data folder into pieces, each with its checksum, and at the other side writes the files again into the layout that
privet reads::

    python scripts/data_pieces.py pack data/cifar-10-batches-bin data/MNIST --root data -o pieces --limit 48
    python scripts/data_pieces.py unpack pieces more_pieces -o data

``unpack`` takes any number of folders with pieces and the manifest, in any order. It writes every file whose pieces are
all there and says what is missing; call it again when more have arrived. Files that are there already and right are
left alone. Batches of CIFAR-10's binary version become lossless WebP pictures, half as large as the best general
compression, if Pillow is installed on both sides; everything else is stored as it is or with xz, whichever is smaller.
The script needs nothing of privet.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import lzma
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = "manifest.json"
_FORMAT = "data-pieces-1"
_MIB = 1 << 20
# One label byte and three planes of 32 x 32 bytes.
_PLANES, _SIDE = 3, 32
_RECORD = 1 + _PLANES * _SIDE * _SIDE
_SIGNATURES_OF_PACKED = (b"\x1f\x8b", b"\xfd7zXZ", b"PK\x03\x04")


class PiecesError(Exception):
    """Pieces or files are not what they should be."""


def pack(sources: Sequence[Path], root: Path, folder: Path, *, limit: int) -> list[Path]:
    """Write the pieces of all files below the sources, named relative to the root, and the manifest.

    Args:
        sources: Files and folders below the root.
        root: The data folder.
        folder: Where pieces are written.
        limit: Largest piece in bytes.

    Raises:
        PiecesError: a source is not below the root, or there is nothing to pack.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stream, files = io.BytesIO(), []
    for path in _files(sources):
        name = _relative(path, root)
        content = path.read_bytes()
        encoding, packed = _encoded(content)
        files.append(
            {
                "name": name,
                "sha256": _digest(content),
                "encoding": encoding,
                "begin": stream.tell(),
                "bytes": len(packed),
                "packed_sha256": _digest(packed),
            }
        )
        stream.write(packed)
    if not files:
        raise PiecesError("There is no file to pack. Name files or folders below the root.")
    whole = stream.getvalue()
    pieces, written = [], []
    for number, begin in enumerate(range(0, len(whole), limit)):
        part = whole[begin : begin + limit]
        path = folder / f"piece-{number:03d}.bin"
        path.write_bytes(part)
        written.append(path)
        pieces.append({"file": path.name, "begin": begin, "bytes": len(part), "sha256": _digest(part)})
    manifest = folder / MANIFEST
    manifest.write_text(json.dumps({"format": _FORMAT, "files": files, "pieces": pieces}, indent=1) + "\n")
    return [manifest, *written]


def unpack(folders: Sequence[Path], target: Path) -> tuple[list[str], list[str]]:
    """Write all files whose pieces are there; return the names that are complete and those that are not.

    Raises:
        PiecesError: there is no manifest, manifests differ, a name leads out of the target, or a checksum is wrong.
    """
    manifest = _manifest(folders)
    present = {}
    for piece in manifest["pieces"]:
        found = next((path for folder in folders if (path := folder / _plain(piece["file"])).is_file()), None)
        if found is not None:
            present[piece["begin"]] = (piece, found)
    complete, missing = [], []
    for file in manifest["files"]:
        path = target / _inside(file["name"])
        if path.is_file() and _digest(path.read_bytes()) == file["sha256"]:
            complete.append(file["name"])
            continue
        packed = _range(present, file["begin"], file["bytes"])
        if packed is None:
            missing.append(file["name"])
            continue
        if _digest(packed) != file["packed_sha256"]:
            raise PiecesError(f"The packed bytes of {file['name']} have another checksum than the manifest says.")
        content = _decoded(file["encoding"], packed)
        if _digest(content) != file["sha256"]:
            raise PiecesError(f"{file['name']} has another checksum than the manifest says.")
        path.parent.mkdir(parents=True, exist_ok=True)
        fresh = path.with_name(path.name + ".new")
        fresh.write_bytes(content)
        fresh.replace(path)
        complete.append(file["name"])
    return complete, missing


def _files(sources: Sequence[Path]) -> Iterator[Path]:
    for source in sources:
        if source.is_dir():
            yield from sorted(path for path in source.rglob("*") if path.is_file())
        elif source.is_file():
            yield source
        else:
            raise PiecesError(f"{source} is neither a file nor a folder.")


def _relative(path: Path, root: Path) -> str:
    try:
        return path.resolve().relative_to(root.resolve()).as_posix()
    except ValueError:
        raise PiecesError(f"{path} does not lie below the root {root}.") from None


def _inside(name: str) -> Path:
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts or "\\" in name:
        raise PiecesError(f"The manifest names {name!r}, which leads out of the folder.")
    return Path(*parts)


def _plain(name: str) -> str:
    if len(_inside(name).parts) != 1:
        raise PiecesError(f"The manifest names the piece {name!r}; a piece lies beside its manifest.")
    return name


def _manifest(folders: Sequence[Path]) -> dict[str, Any]:
    texts = {path.read_text() for folder in folders if (path := folder / MANIFEST).is_file()}
    if len(texts) != 1:
        raise PiecesError(
            f"Expected one manifest in {', '.join(map(str, folders))}, found {len(texts)} different ones."
        )
    manifest: dict[str, Any] = json.loads(texts.pop())
    if manifest.get("format") != _FORMAT:
        raise PiecesError(f"The manifest has the format {manifest.get('format')!r}, expected {_FORMAT!r}.")
    return manifest


def _range(present: dict[int, tuple[dict[str, Any], Path]], begin: int, size: int) -> bytes | None:
    """Return these bytes of the stream; None if a piece of them is not there."""
    found = b""
    for start, (piece, path) in sorted(present.items()):
        first, last = max(begin, start), min(begin + size, start + piece["bytes"])
        if first < last:
            content = path.read_bytes()
            if _digest(content) != piece["sha256"]:
                raise PiecesError(f"{path} is damaged: its checksum is not that of the manifest. Carry it again.")
            found += content[first - start : last - start]
    return found if len(found) == size else None


def _encoded(content: bytes) -> tuple[str, bytes]:
    picture = _picture(content)
    if picture is not None:
        return "cifar10-webp", picture
    if content.startswith(_SIGNATURES_OF_PACKED):
        return "stored", content
    packed = lzma.compress(content)
    return ("xz", packed) if len(packed) < len(content) else ("stored", content)


def _decoded(encoding: str, packed: bytes) -> bytes:
    decoders = {"stored": bytes, "xz": lzma.decompress, "cifar10-webp": _batch}
    if encoding not in decoders:
        raise PiecesError(f"The manifest has the encoding {encoding!r}, known are {', '.join(decoders)}.")
    return decoders[encoding](packed)


def _picture(content: bytes) -> bytes | None:
    """Return a batch of CIFAR-10 as its labels and one lossless picture; None if it is none or Pillow is missing."""
    rows = round((len(content) / _RECORD) ** 0.5)
    if not rows or rows * rows * _RECORD != len(content):
        return None
    try:
        import numpy as np
        from PIL import Image, features
    except ImportError:
        return None
    if not features.check("webp"):
        return None
    records = np.frombuffer(content, np.uint8).reshape(-1, _RECORD)
    tiles = records[:, 1:].reshape(rows, rows, _PLANES, _SIDE, _SIDE)
    sheet = tiles.transpose(0, 3, 1, 4, 2).reshape(rows * _SIDE, rows * _SIDE, _PLANES)
    file = io.BytesIO()
    Image.fromarray(sheet).save(file, "WEBP", lossless=True, quality=75, method=4)
    packed = records[:, 0].tobytes() + file.getvalue()
    return packed if _batch(packed) == content else None


def _batch(packed: bytes) -> bytes:
    import numpy as np
    from PIL import Image

    begin = packed.index(b"RIFF")
    # labels are below ten, so that the picture's first letters cannot be among them
    sheet = np.asarray(Image.open(io.BytesIO(packed[begin:])).convert("RGB"))
    rows = sheet.shape[0] // _SIDE
    tiles = sheet.reshape(rows, _SIDE, rows, _SIDE, _PLANES).transpose(0, 2, 4, 1, 3).reshape(rows * rows, -1)
    labels = np.frombuffer(packed[:begin], np.uint8)[:, None]
    return bytes(np.hstack([labels, tiles]).tobytes())


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; 0 if all files are there, 1 if some are missing, 2 for an error."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="write pieces and a manifest")
    packing.add_argument("sources", nargs="+", type=Path)
    packing.add_argument("--root", required=True, type=Path, help="the data folder; names are relative to it")
    packing.add_argument("-o", "--output", required=True, type=Path)
    packing.add_argument("--limit", type=float, default=48.0, help="largest piece in MiB")
    unpacking = commands.add_parser("unpack", help="write the files whose pieces are there")
    unpacking.add_argument("folders", nargs="+", type=Path)
    unpacking.add_argument("-o", "--output", required=True, type=Path)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "pack":
            for path in pack(chosen.sources, chosen.root, chosen.output, limit=max(1, int(chosen.limit * _MIB))):
                print(f"{path} {path.stat().st_size}")
            return 0
        complete, missing = unpack(chosen.folders, chosen.output)
    except (PiecesError, OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"{len(complete)} files are there; missing: {', '.join(missing) if missing else 'none'}")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
