"""Write results/isolation/opacus_layers.md: Opacus' own tests of layers, with privet's gradients instead of its own.

Needs Opacus with its tests (`pip install opacus==1.6.0`, and hypothesis). The tests draw their cases, so counts differ
a little from run to run.

Usage: OMP_NUM_THREADS=1 python -m scripts.opacus_layers_table [--output FILE]
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from tests.gradients.test_opacus_layers import run_all

ROOT = Path(__file__).resolve().parents[1]
_TEXT = """# Opacus' own tests of layers

Written by `OMP_NUM_THREADS=1 python -m scripts.opacus_layers_table`; do not edit by hand. Each case of the tests in
`opacus.tests.grad_samples` (Opacus {opacus}, torch {torch}) is computed by privet's engine at a bound of the
median norm and compared with a loop of single examples. {empty} more cases have no examples or nothing to train.

| exact | refused | wrong | errors | share exact |
|---|---|---|---|---|
| {exact} | {refused} | {wrong} | {errors} | {share:.3f} |

Refusals:

{reasons}
"""


def main() -> None:
    """Run the tests, and write the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "results" / "isolation" / "opacus_layers.md")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    outcomes: Counter[str] = Counter()
    messages: list[str] = []
    result = run_all(outcomes, messages)
    judged = outcomes["exact"] + outcomes["refused"] + outcomes["wrong"]
    reasons = Counter(" ".join(message.split())[:160] for message in messages)
    text = _TEXT.format(
        opacus=version("opacus"),
        torch=version("torch"),
        errors=len(result.errors),
        share=outcomes["exact"] / max(1, judged),
        reasons="\n".join(f"- {number} x {reason} ..." for reason, number in reasons.most_common()) or "none.",
        **{kind: outcomes[kind] for kind in ("exact", "refused", "wrong", "empty")},
    )
    given.output.write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
