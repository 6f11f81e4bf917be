"""tf32 is noticed however it was asked for, and asking never fails."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

_SETTINGS = {
    "nothing": ("", (False, True)),
    "the former way": ("torch.backends.cuda.matmul.allow_tf32 = True", (True, True)),
    "the former way, off": ("torch.backends.cudnn.allow_tf32 = False", (False, False)),
    "matrix products": ("torch.set_float32_matmul_precision('high')", (True, True)),
    "the latter way, as trainers do": ("torch.backends.fp32_precision = 'tf32'", (True, True)),
    "the latter way, off": ("torch.backends.fp32_precision = 'ieee'", (False, False)),
}


@pytest.mark.parametrize("setting", _SETTINGS)
def test_every_way_to_ask_for_tf32_is_understood(setting: str) -> None:
    code, (products, convolutions) = _SETTINGS[setting]
    program = (
        f"import torch; {code}\n"
        "from privet.gradients.norms.product_precision import convolutions_round, products_round\n"
        "from privet.gradients.norms import known_times\n"
        "from privet.gradients.forms.per_example import Outer\n"
        "known_times._key((), Outer(inputs=torch.ones(2, 1, 3), out_grads=torch.ones(2, 1, 4)), True)\n"
        f"assert products_round() is {products} and convolutions_round() is {convolutions}"
    )
    place = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}  # the library that this process tests
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, env=place)
    assert told.returncode == 0, told.stderr[-1000:]
