"""The zoo of programs that mix examples."""

from __future__ import annotations

from tests.isolation import mixers_flow, mixers_layers, mixers_losses, mixers_places, mixers_state
from tests.isolation.mixer import Mixer

_ROOMS = (mixers_losses, mixers_layers, mixers_state, mixers_flow, mixers_places)
MIXERS: tuple[Mixer, ...] = (
    *(found for room in _ROOMS for found in vars(room).values() if isinstance(found, Mixer)),
    *mixers_places.UNDER,
)
