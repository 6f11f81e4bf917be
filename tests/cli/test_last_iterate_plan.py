from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from privet.accounting.guarantee import Guarantee
from privet.vocabulary import Release
from tests.cli.conftest import Ask

SOURCE = Path(__file__).resolve().parents[2] / "src"


def test_a_plan_for_the_last_model_says_what_its_earlier_models_would_cost(ask: Ask) -> None:
    found = json.loads(ask("plan", "mnist_convex", "--json").out)
    promised = Guarantee.from_dict(found["guarantee"])
    assert promised.released is Release.LAST_ITERATE
    assert promised.epsilon <= 4.76
    assert found["plan"]["noise"]["noise_multiplier"] == pytest.approx(4.865, abs=1e-3)
    assert found["epsilon_if_every_iterate_were_seen"] > 60
    assert "if every iterate were seen" in ask("plan", "mnist_convex").out


@pytest.mark.parametrize(
    ("override", "reason"),
    [
        ("training.optimizer.momentum=0.9", "plain gradient descent only"),
        ("privacy.clipping.norm=1.0", "cosine -0.377"),
        ("privacy.adjacency=add_or_remove", "adding or removing one record"),
        ("privacy.descent.learning_rate=9.0", "make them equal"),
    ],
)
def test_a_recipe_without_a_proof_is_refused_with_the_reason(ask: Ask, override: str, reason: str) -> None:
    answer = ask("plan", "mnist_convex", "--set", override)
    assert answer.code == 2
    assert reason in " ".join(answer.err.split())


def test_planning_the_last_model_loads_no_torch() -> None:
    program = (
        "import sys\n"
        "from privet.runs.recipes.recipe_files import load_recipe\n"
        "load_recipe('mnist_convex').plan().guarantee()\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(SOURCE), "PATH": ""})
