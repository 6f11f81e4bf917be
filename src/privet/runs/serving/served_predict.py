"""Predict with the exported model beside this file: python predict.py records.csv > predicted.csv.

A model of images takes a folder of images. Needs Python 3.10 and the packages in requirements.txt: numpy, pillow for
images, torch for a network that numpy cannot carry out. model.json holds the columns, their encoding and the operations
of the network; model.safetensors holds its weights. The certificate beside it says what was promised about the training
data; records that are predicted here are not protected.
"""

from __future__ import annotations

import csv
import json
import math
import os
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np

Array = Any
WORDS_FOR_GAPS = frozenset({"", "nan", "na", "n/a", "null", "none"})
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff")
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF")
_DEEP_GREY = ("I;16", "I;16B", "I;16L", "I")
_LARGEST_CELL = 1_000_000
_TYPES = {"F64": "<f8", "F32": "<f4", "I64": "<i8", "I32": "<i4", "U8": "<u1", "BOOL": "?"}


def read_weights(path: Path) -> dict[str, Array]:
    """Read a safetensors file: the length of its header, the header as JSON, and the bytes of all tensors."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    found = {}
    for name, each in header.items():
        if name != "__metadata__":
            first, last = (start + offset for offset in each["data_offsets"])
            found[name] = np.frombuffer(data[first:last], _TYPES[each["dtype"]]).reshape(each["shape"])
    return found


def composed(word: str) -> str:
    """Return a word without spaces around it in composed Unicode."""
    return unicodedata.normalize("NFC", word.strip())


def place_of(cell: str, words: Sequence[str], decimal: str) -> int | None:
    """Return the place of the declared word that a cell holds, or of one that is equal as a number; None if none is."""
    if cell in words:
        return words.index(cell)
    names = [composed(word) for word in words]
    if composed(cell) in names:
        return names.index(composed(cell))
    numbers = [exact(word, decimal) for word in names]
    wanted = exact(composed(cell), decimal)
    return None if wanted is None or wanted not in numbers else numbers.index(wanted)


def exact(word: str, decimal: str) -> Decimal | None:
    """Return the number that a word writes; None if it writes none."""
    if "_" in word or (decimal == "," and "." in word):
        return None
    try:
        found = Decimal(word.replace(",", ".") if decimal == "," else word)
    except InvalidOperation:
        return None
    return found if found.is_finite() else None


def number(cell: str, column: Mapping[str, Any]) -> float:
    """Return the number in a cell of a column; NaN for a cell without one."""
    if column["kind"] == "date":
        try:
            found = datetime.strptime(cell, column["format"])
        except ValueError:
            return math.nan
        days = (found.date() - datetime.strptime(column["earliest"], "%Y-%m-%d").date()).days
        return days + (found.hour * 3600 + found.minute * 60 + found.second) / 86_400
    if column["kind"] == "ordinal":
        place = place_of(cell, column["ordered"], column["decimal"])
        return math.nan if place is None else float(place)
    if "_" in cell or (column["decimal"] == "," and "." in cell):
        return math.nan
    try:
        return float(cell.replace(",", ".") if column["decimal"] == "," else cell)
    except ValueError:
        return math.nan


def value(cell: str, column: Mapping[str, Any], record: int) -> list[float]:
    """Return the encoded numbers of a cell; a gap takes the column's default, as in training."""
    cell = cell.strip()
    if column["kind"] == "gap":
        return [float(math.isnan(number(cell, column["of"])))]
    if column["kind"] == "category":
        words = column["categories"]
        place = place_of(column["default"] if not cell and cell not in words else cell, words, column["decimal"])
        if place is None:
            raise SystemExit(f"record {record}: the column {column['name']!r} holds an undeclared category")
        return [float(place == each) for each in range(len(words))]
    if cell.lower() in WORDS_FOR_GAPS:
        return [column["default"]]
    found = number(cell, column)
    if math.isnan(found):
        raise SystemExit(f"record {record}: the column {column['name']!r} does not hold what was declared")
    return [min(max(found, column["low"]), column["high"])]


def features_of(rows: Sequence[Mapping[str, str]], served: Mapping[str, Any]) -> Array:
    """Return the features of records, as the network expects them."""
    encoded = [
        [each for column in served["columns"] for each in value(row.get(column["header"]) or "", column, place)]
        for place, row in enumerate(rows, start=1)
    ]
    scale = served["normalisation"]
    found = np.array(encoded, dtype=np.float64).reshape(len(rows), -1)
    found = (found - np.array(scale["shift"])) / np.array(scale["scale"])
    found = found if scale["bounds"] is None else np.clip(found, *scale["bounds"])
    return found.astype(np.float32)


def image_files(folder: str) -> list[Path]:
    """Return the images of a folder and of its sub-folders."""
    root = Path(folder)
    try:
        inner = [each for each in root.iterdir() if each.is_dir() and not each.name.startswith(".")]
        files = [path for place in (root, *sorted(inner)) for path in sorted(place.iterdir())]
    except OSError as error:
        raise SystemExit(f"The folder {folder} cannot be read: {error.strerror}.") from None
    found = [path for path in files if path.name.lower().endswith(SUFFIXES) and not path.name.startswith(".")]
    if not found:
        raise SystemExit(f"{folder} holds no images.")
    return found


def pixels_of(path: Path, declared: Mapping[str, int]) -> Array:
    """Return one image of the declared size as numbers from 0 to 1, channels first."""
    from PIL import Image, ImageOps

    try:
        with Image.open(path, formats=_FORMATS) as image:
            image.load()
            upright = ImageOps.exif_transpose(image)
        if upright.mode in _DEEP_GREY:
            upright = Image.fromarray((np.clip(np.asarray(upright, np.int64), 0, 65_535) // 257).astype(np.uint8))
        size = (declared["width"], declared["height"])
        resized = upright.convert("L" if declared["channels"] == 1 else "RGB").resize(size, Image.Resampling.BILINEAR)
    except (OSError, ValueError):
        raise SystemExit(f"{path} is not an image that can be read.") from None
    pixels = np.asarray(resized, dtype=np.uint8).reshape(declared["height"], declared["width"], declared["channels"])
    return pixels.transpose(2, 0, 1).astype(np.float32) / np.float32(255)


def image_features(files: Sequence[Path], served: Mapping[str, Any]) -> Array:
    """Return images as the network expects them."""
    scale = served["normalisation"]
    shift, factor = (np.array(scale[name], np.float32).reshape(1, -1, 1, 1) for name in ("shift", "scale"))
    found = (np.stack([pixels_of(path, served["images"]) for path in files]) - shift) / factor
    return found if scale["bounds"] is None else np.clip(found, *scale["bounds"])


def clamped(x: Array, low: Any = None, high: Any = None) -> Array:
    """Return an array within limits, either of which may be missing."""
    return np.clip(x, -np.inf if low is None else low, np.inf if high is None else high)


def sliced(x: Array, axis: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Array:
    """Return a part of an array along one axis."""
    return x[(slice(None),) * (axis % x.ndim) + (slice(start, end, step),)]


OPERATIONS: Mapping[str, Any] = {
    "sym_size.int": lambda x, axis: x.shape[axis],
    "view.default": lambda x, shape: x.reshape(shape),
    "_unsafe_view.default": lambda x, shape: x.reshape(shape),
    "reshape.default": lambda x, shape: x.reshape(shape),
    "permute.default": lambda x, axes: x.transpose(axes),
    "t.default": lambda x: x.T,
    "transpose.int": lambda x, a, b: np.swapaxes(x, a, b),
    "unsqueeze.default": lambda x, axis: np.expand_dims(x, axis),
    "squeeze.dims": lambda x, axes: np.squeeze(x, tuple(axes)),
    "squeeze.dim": lambda x, axis: np.squeeze(x, axis) if x.shape[axis] == 1 else x,
    "expand.default": lambda x, shape: np.broadcast_to(x, [n if n != -1 else x.shape[i] for i, n in enumerate(shape)]),
    "slice.Tensor": sliced,
    "select.int": lambda x, axis, place: np.take(x, place, axis),
    "cat.default": lambda parts, axis=0: np.concatenate(parts, axis),
    "clone.default": lambda x, **_: x,
    "detach.default": lambda x: x,
    "alias.default": lambda x: x,
    "full_like.default": lambda x, filling, **_: np.full_like(x, filling),
    "ones_like.default": lambda x, **_: np.ones_like(x),
    "zeros_like.default": lambda x, **_: np.zeros_like(x),
    "addmm.default": lambda bias, x, weight: x @ weight + bias,
    "mm.default": lambda x, y: x @ y,
    "add.Tensor": lambda x, y: x + y,
    "sub.Tensor": lambda x, y: x - y,
    "mul.Tensor": lambda x, y: x * y,
    "div.Tensor": lambda x, y: x / y,
    "add.Scalar": lambda x, y: x + y,
    "sub.Scalar": lambda x, y: x - y,
    "mul.Scalar": lambda x, y: x * y,
    "div.Scalar": lambda x, y: x / y,
    "rsub.Scalar": lambda x, y: y - x,
    "neg.default": lambda x: -x,
    "pow.Tensor_Scalar": lambda x, power: x**power,
    "sqrt.default": np.sqrt,
    "rsqrt.default": lambda x: 1 / np.sqrt(x),
    "reciprocal.default": lambda x: 1 / x,
    "exp.default": np.exp,
    "log.default": np.log,
    "cos.default": np.cos,
    "sin.default": np.sin,
    "abs.default": np.abs,
    "relu.default": lambda x: np.maximum(x, 0),
    "tanh.default": np.tanh,
    "sigmoid.default": lambda x: 1 / (1 + np.exp(-x)),
    "maximum.default": np.maximum,
    "minimum.default": np.minimum,
    "clamp.default": clamped,
    "clamp_min.default": clamped,
    "isnan.default": np.isnan,
    "where.self": np.where,
    "eq.Scalar": lambda x, y: x == y,
    "scalar_tensor.default": lambda x, **_: np.float32(x),
    "full.default": lambda shape, filling, **_: np.full(shape, filling, dtype=np.float32),
    "mean.dim": lambda x, axes, keep=False: x.mean(tuple(axes), keepdims=keep),
    "sum.dim_IntList": lambda x, axes, keep=False: x.sum(tuple(axes), keepdims=keep),
}


def run(program: Mapping[str, Any], weights: Mapping[str, Array], features: Array) -> Array:
    """Carry out the operations of the network one by one."""
    values: dict[str, Any] = {program["input"]: features}
    values |= {name: weights[stored] for name, stored in program["weights"].items()}

    def read(argument: Any) -> Any:
        if isinstance(argument, dict):
            return argument["infinity"] * math.inf if "infinity" in argument else values[argument["node"]]
        return [read(each) for each in argument] if isinstance(argument, list) else argument

    with np.errstate(all="ignore"):
        for step in program["steps"]:
            named = {name: read(argument) for name, argument in step["named"].items()}
            values[step["name"]] = OPERATIONS[step["operation"]](*map(read, step["arguments"]), **named)
    return np.asarray(values[program["output"]], dtype=np.float64)


def outputs_of(folder: Path, served: Mapping[str, Any], features: Array) -> Array:
    """Return the outputs of the network; one that numpy cannot carry out is run by torch, from model.pt2."""
    if served["program"] is not None:
        return run(served["program"], read_weights(folder / "model.safetensors"), features)
    import torch

    with torch.no_grad():
        network = torch.export.load(folder / "model.pt2").module()
        return np.asarray(network(torch.from_numpy(features)).double().numpy())


def softmax(outputs: Array) -> Array:
    """Return the probabilities of classes."""
    raised = np.exp(outputs - outputs.max(1, keepdims=True))
    return raised / raised.sum(1, keepdims=True)


def decisions(outputs: Array, served: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return the columns of the predictions: classes with their probabilities, and numbers."""
    found: dict[str, list[Any]] = {}
    start, alone = 0, len(served["targets"]) == 1
    for target in served["targets"]:
        own = outputs[:, start : start + target["outputs"]]
        start += target["outputs"]
        prefix = "" if alone else f"{target['name']}: "
        if target["kind"] == "classes":
            likely = own.argmax(1) if target["threshold"] == 0.5 else softmax(own)[:, 1] >= target["threshold"]
            found[f"{prefix}class"] = [target["class_names"][int(place)] for place in likely]
            for name, chances in zip(target["class_names"], softmax(own / served["temperature"]).T, strict=True):
                found[f"{prefix}probability of {name}"] = [f"{each:.6f}" for each in chances]
            continue
        if target["kind"] == "plain":
            found[target["name"]] = [f"{each:.6f}" for each in own[:, 0]]
            continue
        if target["kind"] == "count":
            inside = np.minimum(own[:, 0], math.log(target["high"] / target["unit"]))
            said = np.exp(inside) * (1 + own[:, 0] - inside) * target["unit"]
        else:
            said = own[:, 0] * (target["high"] - target["low"]) / 2 + (target["high"] + target["low"]) / 2
        found[target["name"]] = [f"{each:.6f}" for each in np.clip(said, target["low"], target["high"])]
    return found


def read_records(path: str, served: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return the cells of every record by the names in the header line."""
    csv.field_size_limit(_LARGEST_CELL)
    try:
        with open(path, encoding="utf-8-sig", newline="") as source:
            reader = csv.reader(source, delimiter=served["delimiter"], skipinitialspace=True)
            header = [composed(name) for name in next(reader, [])]
            missing = [column["header"] for column in served["columns"] if header.count(column["header"]) != 1]
            if missing:
                raise SystemExit(f"The header should name the column {missing[0]!r} once.")
            return [dict(zip(header, row, strict=False)) for row in reader if row]
    except OSError as error:
        raise SystemExit(f"{path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise SystemExit(f"{path} is not UTF-8 text. Save it as UTF-8.") from None
    except csv.Error as error:
        raise SystemExit(f"{path} cannot be read as a table of cells: {error}.") from None


def main(arguments: Sequence[str]) -> None:
    """Read records, and write one line for each."""
    if len(arguments) != 1:
        raise SystemExit("Usage: python predict.py records.csv > predicted.csv, or a folder for images")
    folder = Path(__file__).resolve().parent
    served = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    if served["images"] is None:
        features = features_of(read_records(arguments[0], served), served)
        names = [str(number) for number in range(1, len(features) + 1)]
    else:
        files = image_files(arguments[0])
        features, names = image_features(files, served), [str(path) for path in files]
    columns = decisions(outputs_of(folder, served, features), served)
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(["record", *columns])
    writer.writerows([name, *row] for name, row in zip(names, zip(*columns.values(), strict=True), strict=True))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads has read enough, as "head" does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
