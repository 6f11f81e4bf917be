"""The zoo of programs that mix examples."""

from __future__ import annotations

from tests.isolation import mixers_flow, mixers_layers, mixers_losses, mixers_state
from tests.isolation.mixer import Mixer

MIXERS: tuple[Mixer, ...] = tuple(
    found
    for module in (mixers_losses, mixers_layers, mixers_state, mixers_flow)
    for found in vars(module).values()
    if isinstance(found, Mixer)
)
