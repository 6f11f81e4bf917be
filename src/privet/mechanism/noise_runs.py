"""Noise during a run: in which units each step is clipped and noised, and what noise that learns releases to learn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from privet.errors import CheckpointError
from privet.mechanism.clipping_runs import State
from privet.mechanism.geometry import Frame
from privet.mechanism.layout import Layout
from privet.mechanism.noise import Noise
from privet.mechanism.shaped_noise import ShapedNoise

if TYPE_CHECKING:
    from torch import Tensor


class StepUnits(NamedTuple):
    """How a step is measured.

    Attributes:
        frame: The units of clipping and noise; None for plain ones.
        squares: Where the engine adds up squared clipped gradients, rows and columns; secret. None if nobody asks.
    """

    frame: Frame | None
    squares: Tensor | None


class NoiseRun(Protocol):
    """A noise piece at work in one run."""

    @property
    def piece(self) -> Noise:
        """What adds the noise of the present step."""
        ...

    def begin(self, step: int, like: Tensor) -> StepUnits:
        """Fix the units of a step before its batch is read; what an unfinished pass has summed is forgotten."""
        ...

    def state(self) -> State:
        """Return the released values from which later steps follow; public."""
        ...

    def restore(self, state: State) -> None:
        """Go on from a state of the same piece and model."""
        ...


@runtime_checkable
class ChangingNoise(Protocol):
    """A noise piece whose units are not the same at every step."""

    def start(self, layout: Layout, *, has_mask: bool) -> NoiseRun:
        """Begin a run of a model of this layout."""
        ...


@dataclass(kw_only=True)
class UnchangingNoise:
    """Noise that stays as it is and releases nothing of its own."""

    piece: Noise
    layout: Layout
    _frame: Frame | None = None

    def begin(self, step: int, like: Tensor) -> StepUnits:
        """Return the units of the piece, if it has any, bound once."""
        if self._frame is None and isinstance(self.piece, ShapedNoise):
            self._frame = Frame.of(self.piece.geometry, self.layout, like)
        return StepUnits(frame=self._frame, squares=None)

    def state(self) -> State:
        """Nothing evolves."""
        return {}

    def restore(self, state: State) -> None:
        """Refuse a state that belongs to another piece."""
        if state:
            raise CheckpointError(f"This noise keeps no state, but the checkpoint has {sorted(state)} for it.")


def start_noise(noise: Noise, layout: Layout, *, has_mask: bool) -> NoiseRun:
    """Begin a run of any noise piece."""
    if isinstance(noise, ChangingNoise):
        return noise.start(layout, has_mask=has_mask)
    return UnchangingNoise(piece=noise, layout=layout)


def checked_state(state: Mapping[str, tuple[float, ...]], lengths: Mapping[str, int], piece: str) -> None:
    """Refuse a state with other names or lengths than a piece keeps."""
    found = {name: len(values) for name, values in state.items()}
    if found != dict(lengths):
        raise CheckpointError(
            f"{piece} needs {dict(lengths)} numbers to go on, the checkpoint has {found}. It belongs to another plan "
            "or model."
        )
