"""What Poisson sampling wastes: the figures of the slides of Romijnders and Koskela (2025), computed exactly.

They draw 64 of 100,000 records at a time and find that an epoch misses a share of 1/e; and they fill physical batches
of 256 with 230 expected records, of which 4 % overflow. The other samplers stand beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from privet.accounting.batch_sizes import waste_table
from privet_research.studies.markdown import markdown

Row = dict[str, Any]
# Records, logical batch, physical batch.
SETTINGS: Mapping[str, tuple[int, int, int]] = {
    "64 of 100,000": (100_000, 64, 64),
    "230 in slots of 256": (100_000, 230, 256),
}


def run_waste_study(*, seeds: Sequence[int]) -> Iterator[Row]:
    """Yield one row per sampler and setting; nothing is random, so every seed has the same."""
    for seed in seeds:
        for name, (size, batch, physical) in SETTINGS.items():
            for found in waste_table(dataset_size=size, batch_size=batch, physical_batch_size=physical):
                yield {
                    "arm": found.sampler,
                    "setting": name,
                    "seed": seed,
                    "num_unique": size * (1 - found.never_seen),
                    **found.to_dict(),
                }


def waste_rows_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as Markdown, in percent."""
    head = ["setting", "sampler", "records seen", "never seen %", "stragglers %", "dropped %", "padding %"]
    lines = [head]
    for row in rows:
        if row["seed"] != rows[0]["seed"]:
            continue
        shares = [f"{100 * row[key]:.2f}" for key in ("never_seen", "stragglers", "dropped", "padding")]
        lines.append([row["setting"], row["sampler"], f"{row['num_unique']:,.0f}", *shares])
    return markdown(lines) + "\n"
