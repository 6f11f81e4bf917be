"""The forms in which estimators take data: tensors, arrays, frames, sparse matrices, and data sets of pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from privet.errors import DataError
from privet.training.batching import MapDataset

Array = NDArray[Any]
Inputs = Any
"""A tensor, an array, a data frame of pandas or polars, a sparse matrix of scipy, or a data set of pairs."""
Targets = Any
"""A tensor, an array, a column of a frame, or a list."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Rows:
    """Inputs as rows: one tensor, or a sparse matrix that is made dense a batch at a time.

    Attributes:
        values: The rows.
        names: The names of the columns, where the inputs had any.
    """

    values: Tensor | sparse.csr_array
    names: tuple[str, ...] | None = None

    def __len__(self) -> int:
        return int(self.values.shape[0])

    @property
    def num_features(self) -> int:
        """The size of the second axis; of images, their channels."""
        return int(self.values.shape[1])

    def parts(self, size: int, like: Tensor) -> list[Tensor]:
        """Return the rows as dense tensors of the type and place of ``like``, so many at a time."""
        return [
            _dense(self.values[start : start + size]).to(dtype=like.dtype, device=like.device)
            for start in range(0, len(self), size)
        ]

    def with_targets(self, targets: Tensor, dtype: torch.dtype) -> MapDataset:
        """Return a data set of pairs whose inputs have this type."""
        if isinstance(self.values, Tensor):
            return TensorDataset(self.values.to(dtype), targets)
        return SparsePairs(rows=self.values, targets=targets, dtype=dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class SparsePairs:
    """Pairs of a sparse row and a target; only the rows of a batch are made dense."""

    rows: sparse.csr_array
    targets: Tensor
    dtype: torch.dtype

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return _dense(self.rows[[index]])[0].to(self.dtype), self.targets[index]

    def take(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pairs at ``indices`` as one batch."""
        return _dense(self.rows[indices.cpu().numpy()]).to(self.dtype), self.targets[indices]


def is_dataset(inputs: Inputs) -> bool:
    """Whether inputs are a data set of pairs, not rows."""
    is_rows = isinstance(inputs, Tensor) or hasattr(inputs, "__array__") or sparse.issparse(inputs)
    return not is_rows and not hasattr(inputs, "to_numpy") and isinstance(inputs, MapDataset)


def rows_of(inputs: Inputs) -> Rows:
    """Read inputs as rows of numbers.

    Raises:
        DataError: they are no numbers, have no rows or columns, or some number is missing or infinite. No value is
            shown.
    """
    columns = getattr(inputs, "columns", None)
    names = None
    if columns is not None and all(isinstance(name, str) for name in columns):
        names = tuple(columns)
    if sparse.issparse(inputs):
        matrix = sparse.csr_array(inputs)
        _check_numbers(matrix.dtype)
        _check_finite(torch.from_numpy(np.ascontiguousarray(matrix.data)))
        return Rows(values=_checked_shape(matrix))
    tensor = inputs if isinstance(inputs, Tensor) else _numbers(inputs)
    _check_finite(tensor)
    return Rows(values=_checked_shape(tensor), names=names)


def _numbers(inputs: Inputs) -> Tensor:
    array = inputs.to_numpy() if hasattr(inputs, "to_numpy") else np.asarray(inputs)
    if array.dtype == object or array.dtype.kind in "USM":
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            kind = TypeError if "argument must be" in str(error) else DataError
            raise kind(
                "The inputs are no numbers (argument must be a string or a number for each value). Turn words into "
                "numbers by a public list, and give missing values a number."
            ) from None
    _check_numbers(array.dtype)
    return torch.from_numpy(np.array(array))  # a copy: an array may be read-only


def _check_numbers(dtype: np.dtype[Any]) -> None:
    if dtype.kind == "c":
        raise DataError("Complex data not supported: the inputs are complex numbers. Pass real and imaginary parts.")


def _checked_shape(values: Any) -> Any:
    if values.ndim < 2:
        raise DataError(
            f"The inputs have {values.ndim} axes, and one row per record is needed. Reshape your data: a single "
            "feature is a column, inputs.reshape(-1, 1); a single record is a row, inputs.reshape(1, -1)."
        )
    if not values.shape[0] or not values.shape[1]:
        raise DataError(
            f"Found array with {values.shape[0]} sample(s) and {values.shape[1]} feature(s) "
            f"(shape={tuple(values.shape)}) while a minimum of 1 is required."
        )
    return values


def _check_finite(values: Tensor) -> None:
    if values.is_complex():
        raise DataError("Complex data not supported: the inputs are complex numbers. Pass real and imaginary parts.")
    if values.is_floating_point() and not bool(values.isfinite().all()):
        raise DataError(
            "The inputs contain NaN or infinity. Replace missing values by a number that is chosen without looking at "
            "the data, for instance 0, in every record alike."
        )


def _dense(rows: Any) -> Tensor:
    return rows if isinstance(rows, Tensor) else torch.from_numpy(rows.toarray())


@torch.no_grad()
def probe(model: nn.Module, rows: Rows) -> tuple[torch.dtype, int | None]:
    """Return the type of inputs that a model takes and its number of outputs, found on made-up zeros.

    Whole numbers stay whole for a model that takes them, such as one with an embedding; otherwise inputs get the type
    of the model's parameters. The number is None if the model runs on neither: training says what is wrong with it.
    """
    first = next(model.parameters())
    own = first.dtype if first.dtype.is_floating_point else torch.get_default_dtype()
    given = _dense(rows.values[:1]).dtype
    was_training = model.training
    model.eval()
    try:
        for dtype in (own,) if given.is_floating_point else (given, own):
            try:
                made_up = torch.zeros(1, *rows.values.shape[1:], dtype=dtype, device=first.device)
                return dtype, int(model(made_up).shape[-1])
            except Exception:  # noqa: BLE001, S112 -- training says with all its care what is wrong
                continue
    finally:
        model.train(was_training)
    return own, None


@runtime_checkable
class ClassList(Protocol):
    """Where the list of classes comes from."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions that it adds to a guarantee."""
        ...

    def names(self, labels: Array) -> Array:
        """Return the classes, in the order of the model's outputs."""
        ...


@dataclass(frozen=True)
class DeclaredClasses:
    """A public list of the classes.

    Attributes:
        listed: The classes, in the order of the model's outputs.
    """

    listed: Sequence[Any]
    assumptions: tuple[str, ...] = field(default=(), init=False)

    def names(self, labels: Array) -> Array:
        return np.asarray(list(self.listed))


@dataclass(frozen=True)
class ClassesOfLabels:
    """Reads the list of classes off the labels.

    Which classes occur among private records is private unless every possible class is certain to occur. This piece
    states that the list is public, and the guarantee says so.
    """

    assumptions: tuple[str, ...] = field(
        default=("the list of classes, which was read off the labels, is public",), init=False
    )

    def names(self, labels: Array) -> Array:
        return np.unique(labels)


def class_numbers(labels: Array, classes: Array) -> Tensor:
    """Return the place of each label in the list of classes.

    Raises:
        DataError: some label is not in the list. It is not shown.
    """
    order = np.argsort(classes, kind="stable")
    try:
        places = np.searchsorted(classes, labels, sorter=order).clip(0, len(classes) - 1)
        numbers = order[places]
        is_known = bool((classes[numbers] == labels).all())
    except TypeError:
        is_known = False
    if not is_known:
        raise DataError(
            f"Some label is none of the {len(classes)} classes of classes=. List every class that a record may have, "
            "also those that do not occur; which ones occur is private."
        )
    return torch.from_numpy(numbers)


def labels_of(targets: Targets, length: int) -> Array:
    """Return labels or targets as an array with one entry per input."""
    if targets is None:
        raise DataError(
            "fit() got inputs without targets: it requires y to be passed, but the target y is None. Pass both, or one "
            "data set of pairs."
        )
    array = targets.detach().cpu().numpy() if isinstance(targets, Tensor) else np.asarray(targets)
    if len(array) != length:
        raise DataError(f"fit() got {length} inputs and {len(array)} targets. They must be pairs.")
    if array.dtype.kind == "c":
        raise DataError("Complex data not supported: the targets are complex numbers.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise DataError("The targets contain NaN or infinity. Leave such records out by a rule that is public.")
    return array
