"""All architectures of the table, by name, and those that mix their examples or move them by number."""

from __future__ import annotations

from tests.isolation.architecture import Architecture
from tests.isolation.architectures_diffusers import DIFFUSERS
from tests.isolation.architectures_moving import MOVING, TRAVELLING
from tests.isolation.architectures_peft import PEFT
from tests.isolation.architectures_senses import SENSES
from tests.isolation.architectures_torch import TORCH
from tests.isolation.architectures_transformers import TRANSFORMERS
from tests.isolation.architectures_wider import WIDER

ARCHITECTURES: dict[str, Architecture] = {
    row.name: row for row in (*TORCH, *TRANSFORMERS, *SENSES, *PEFT, *DIFFUSERS, *TRAVELLING)
}
COVERED: tuple[Architecture, ...] = (*ARCHITECTURES.values(), *MOVING, *WIDER)
