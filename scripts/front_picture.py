"""Draw the picture of the front page, docs/images/overview.png: limits of attackers, and speed beside Opacus.

The curves are computed from plans, the bars read from results/benchmarks/README.md:

    python scripts/front_picture.py
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from scipy.special import ndtr, ndtri

import privet as pv

mpl.use("Agg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "images" / "overview.png"
NAMES = {
    "mnist": "CNN (MNIST)",
    "dpcnn": "CNN (CIFAR-10)",
    "mlp": "MLP",
    "lstm": "LSTM",
    "wrn16_4": "WRN-16-4",
    "resnet18": "ResNet-18",
    "vit_s": "ViT-S",
    "gpt2": "GPT-2",
}


def speeds() -> list[tuple[str, float, float, float]]:
    """Return for each model its name and the relative speeds of Opacus' best mode, privet eager and privet's best."""
    text = (ROOT / "results" / "benchmarks" / "README.md").read_text(encoding="utf-8")
    rows_of_tables = [line for line in text.splitlines() if line.startswith("|")]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in rows_of_tables]
    header = lines[0]
    rows = []
    for line in lines[2:10]:
        cells = dict(zip(header, line, strict=True))
        ours = [_number(cells[name]) for name in ("privet eager", "privet graph", "privet compiled")]
        rows.append((NAMES[cells["model"]], _number(cells["best rival"]), ours[0], max(ours)))
    return rows


def _number(cell: str) -> float:
    found = re.match(r"[\d.]+", cell)
    return float(found.group()) if found else 0.0


def draw_limits(axes: Any) -> None:
    """Draw the limit of members found against false accusations, for three plans."""
    wrong = np.linspace(0.0, 0.2, 201)
    for epsilon, colour in zip((8.0, 3.0, 1.0), ("#9ecae1", "#4292c6", "#084594"), strict=True):
        plan = pv.Plan.dpsgd(dataset_size=60_000, batch_size=1_000, epochs=20, epsilon=epsilon, delta=1e-5)
        right = np.minimum(1.0, ndtr(ndtri(wrong) + plan.guarantee().mu) + plan.delta)
        axes.plot(100 * wrong, 100 * right, color=colour, linewidth=2)
        axes.text(20.4, 100 * right[-1], f"$\\varepsilon$ = {epsilon:g}", color=colour, va="center", fontsize=9)
    axes.plot([0, 20], [0, 20], color="#777777", linestyle=":", linewidth=1.2)
    axes.text(20.4, 18.0, "guessing", color="#777777", va="center", fontsize=9)
    axes.set(
        xlim=(0, 20),
        ylim=(0, 100),
        xlabel="false accusations, %",
        ylabel="members found at most, %",
        xticks=range(0, 21, 5),
    )
    axes.set_title("What any attacker can find, by guarantee", fontsize=10.5, loc="left")


def draw_speeds(axes: Any) -> None:
    """Draw examples per second over those of ordinary training."""
    rows = speeds()[::-1]
    places = np.arange(len(rows))
    others, eager, best = (np.array([row[part] for row in rows]) for part in (1, 2, 3))
    axes.barh(places + 0.27, others, 0.26, color="#bdbdbd", label="best mode of Opacus")
    axes.barh(places, eager, 0.26, color="#9ecae1", label="privet, eager")
    axes.barh(places - 0.27, best, 0.26, color="#2171b5", label="privet, CUDA graphs or compiled")
    axes.axvline(1.0, color="#444444", linewidth=1)
    axes.set_yticks(places, [row[0] for row in rows], fontsize=9)
    axes.set_xlabel("examples per second, ordinary eager training = 1 (one H200)")
    axes.set_title("Speed of a private step", fontsize=10.5, loc="left")
    axes.legend(frameon=False, fontsize=8.5, loc="lower right")


def main() -> None:
    """Draw both halves."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.4, 3.7), gridspec_kw={"width_ratios": (1, 1.25)})
    draw_limits(left)
    draw_speeds(right)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=9)
        axes.xaxis.label.set_size(9)
        axes.yaxis.label.set_size(9)
    figure.tight_layout(w_pad=3.5)
    figure.savefig(PICTURE, dpi=160, metadata={"Software": None})
    print(PICTURE.relative_to(ROOT))


if __name__ == "__main__":
    main()
