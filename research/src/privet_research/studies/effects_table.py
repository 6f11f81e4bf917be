"""The studies of side effects as tables: our means beside the published figures, and what they say."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from privet.accounting.guarantee import rounded_up
from privet_research.studies.clipping_table import summarise
from privet_research.studies.markdown import markdown

Row = Mapping[str, Any]


def _lines(cells: Sequence[Sequence[str]]) -> str:
    head, *rest = cells
    return markdown([head, *rest])


def _by_arm(rows: Sequence[Row]) -> dict[str, list[Row]]:
    return {arm: [row for row in rows if row["arm"] == arm] for arm in dict.fromkeys(row["arm"] for row in rows)}


def _mean(rows: Sequence[Row], key: str) -> float:
    return statistics.fmean(row[key] for row in rows)


def _terms(rows: Sequence[Row]) -> str:
    spent = sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
    seeds = ", ".join(str(seed) for seed in sorted({row["seed"] for row in rows}))
    said = ", ".join(dict.fromkeys(rounded_up(value) for value in spent))
    return (
        f"Private arms: epsilon {said} at delta {rows[0]['delta']:g} (add or remove one record, Poisson sampling); "
        f"{rows[0]['epochs']} epochs; seeds {seeds}. Means with standard errors over seeds.{_rates(rows)}"
    )


def _rates(rows: Sequence[Row]) -> str:
    """Say which learning rates were chosen among how many; a choice that looks at data must be told."""
    tried = max(row.get("num_rates_tried", 1) for row in rows)
    if tried == 1:
        return ""
    chosen = ", ".join(f"{rate:g}" for rate in sorted({row["learning_rate"] for row in rows}))
    return (
        f" Learning rate {chosen}: the best of {tried} on training examples held out. The data are public, and this "
        "choice is not charged."
    )


def published_table(rows: Sequence[Row], *, tolerance: float) -> str:
    """Return accuracies, clean and under attack, beside the paper's, with a verdict on each clean one.

    Args:
        rows: Of the padding study, or of one epsilon of the class-size study.
        tolerance: Points by which a clean accuracy may differ from the published one.
    """
    lines = [["arm", "accuracy %", "paper", "verdict", "under attack %", "paper"]]
    for arm, found in _by_arm(rows).items():
        paper, attacked = found[0]["paper_accuracy"], found[0]["paper_attacked_accuracy"]
        off = None if paper is None else 100 * _mean(found, "accuracy") - paper
        verdict = "" if off is None else f"{'within' if abs(off) <= tolerance else 'NOT within'} {tolerance:g} points"
        lines.append(
            [
                arm,
                summarise([row["accuracy"] for row in found]).shown(100, 1),
                "" if paper is None else f"{paper:g}",
                verdict,
                summarise([row["attacked_accuracy"] for row in found]).shown(100, 1),
                "" if attacked is None else f"{attacked:g}",
            ]
        )
    return f"{_terms(rows)}\n\n{_lines(lines)}\n\n{_direction(rows)}\n"


def class_size_table(rows: Sequence[Row], *, tolerance: float) -> str:
    """Return one :func:`published_table` per epsilon, because the publication's own is not known any more."""
    return "\n".join(
        f"## Epsilon {epsilon:g}\n\n{published_table(own, tolerance=tolerance)}"
        for (epsilon,), own in _grouped(rows, "target_epsilon").items()
    )


def _direction(rows: Sequence[Row]) -> str:
    means = [_mean(found, "accuracy") for found in _by_arm(rows).values()]
    falls = all(later <= earlier for earlier, later in itertools.pairwise(means))
    rises = all(later >= earlier for earlier, later in itertools.pairwise(means))
    word = "falls" if falls else "rises" if rises else "neither falls nor rises throughout"
    return f"From the first arm to the last, accuracy {word}."


def freezing_table(rows: Sequence[Row]) -> str:
    """Return accuracy with and without freezing beside the paper's, and what the control says."""
    arms = _by_arm(rows)
    lines = [["arm", "accuracy %", "loss", "paper"]]
    for arm, found in arms.items():
        paper = found[0]["paper_accuracy"]
        cells = [summarise([row["accuracy"] for row in found]).shown(100, 2)]
        cells.append(summarise([row["loss"] for row in found]).shown(1, 3))
        lines.append([arm, *cells, "" if paper is None else f"{paper:g}"])
    first, *others = (100 * _mean(found, "accuracy") for found in arms.values())
    said = ", ".join(f"{name} {value - first:+.1f} points" for name, value in zip(list(arms)[1:], others, strict=True))
    return f"{_terms(rows)}\n\n{_lines(lines)}\n\nAgainst {next(iter(arms))}: {said}.\n"


def rotation_table(rows: Sequence[Row]) -> str:
    """Return accuracy after pre-training and from scratch by angle, beside the paper's, and where scratch wins."""
    lines = [["angle", "pre-trained %", "paper", "from scratch %", "worse start predicted"]]
    worse = []
    for (angle,), found in _grouped(rows, "angle").items():
        arms = {start: [row for row in found if row["start"] == start] for start in ("pre-trained", "from scratch")}
        if not all(arms.values()):
            continue
        shown = [summarise([row["accuracy"] for row in own]).shown(100, 1) for own in arms.values()]
        paper = arms["pre-trained"][0]["paper_accuracy"]
        said = "yes" if found[0]["harm_predicted"] else "no"
        lines.append([f"{angle}", shown[0], "" if paper is None else f"{paper:g}", shown[1], said])
        if _mean(arms["pre-trained"], "accuracy") < _mean(arms["from scratch"], "accuracy"):
            worse.append(f"{angle}")
    where = f"at {', '.join(worse)} degrees" if worse else "at no angle"
    return f"{_terms(rows)}\n\n{_lines(lines)}\n\nPre-training is worse than none {where}.\n"


def adult_table(rows: Sequence[Row]) -> str:
    """Return accuracy and gaps by epsilon, and the groups' accuracies with the mean ends of their intervals."""
    head = ["arm", "accuracy %", "loss", "gap by sex, points", "gap by race, points", "loss gap by race"]
    lines = [head]
    for arm, found in _by_arm(rows).items():
        keys = (("accuracy", 100, 1), ("loss", 1, 3), ("accuracy_gap_sex", 100, 1), ("accuracy_gap_race", 100, 1))
        cells = [summarise([row[key] for row in found]).shown(factor, digits) for key, factor, digits in keys]
        lines.append([arm, *cells, summarise([row["loss_gap_race"] for row in found]).shown(1, 3)])
    return f"{_terms(rows)}\n\n{_lines(lines)}\n\n{_groups(rows)}\n\n{_cost(rows)}\n"


def _accuracies(found: Sequence[Row]) -> dict[tuple[str, str], tuple[float, float, float]]:
    """Return mean accuracy and mean ends of the intervals of every group, over seeds."""
    collected: dict[tuple[str, str], list[tuple[float, float, float]]] = {}
    for row in found:
        for one in row["fairness"]["attributes"]:
            for group in one["groups"]:
                value = group["accuracy"]
                place = collected.setdefault((one["attribute"], group["name"]), [])
                place.append((value["value"], value["low"], value["high"]))
    return {
        key: (
            statistics.fmean(value for value, _, _ in values),
            statistics.fmean(low for _, low, _ in values),
            statistics.fmean(high for _, _, high in values),
        )
        for key, values in collected.items()
    }


def _groups(rows: Sequence[Row]) -> str:
    arms = {arm: _accuracies(found) for arm, found in _by_arm(rows).items()}
    lines = [["group", *(f"{arm}: accuracy % (95 %)" for arm in arms)]]
    for key in next(iter(arms.values())):
        cells = [
            f"{100 * v:.1f} ({100 * low:.1f} to {100 * high:.1f})" for v, low, high in (a[key] for a in arms.values())
        ]
        lines.append([f"{key[0]}: {key[1]}", *cells])
    return _lines(lines)


def _cost(rows: Sequence[Row]) -> str:
    """Say which group pays most for the strongest privacy, from the means alone."""
    arms = list(_by_arm(rows).values())
    plain, private = _accuracies(arms[0]), _accuracies(arms[-1])
    losses = {key: plain[key][0] - private[key][0] for key in plain if key[0] != "class"}
    most = max(losses, key=lambda key: losses[key])
    return (
        f"From the first arm to the last, the group that loses most accuracy is {most[1]} ({most[0]}): "
        f"{100 * losses[most]:.1f} points. Intervals are about the choice of test examples."
    )


def laboratory_table(rows: Sequence[Row]) -> str:
    """Return the laboratory: groups by noise, the phase map, fine-tuning by angle and the rank correlation."""
    shown = (("groups", _group_part), ("phases", _phase_part), ("rotation", _rotation_part), ("correlation", _ranking))
    parts = [(make, [row for row in rows if row["part"] == name]) for name, make in shown]
    return "\n\n".join(make(own) for make, own in parts if own) + "\n"


def _group_part(rows: Sequence[Row]) -> str:
    lines = [["noise", "group", "feature", "share", "FNR", "loss", "accuracy %", "under attack %", "weights"]]
    for (noise, cell), found in _grouped(rows, "noise_std", "cell").items():
        ratio = found[0]["feature_to_noise"]
        shown = [f"{noise:g}", cell, f"{found[0]['feature_size']:g}", f"{found[0]['share']:g}"]
        shown.append("" if ratio is None else f"{ratio:.2f}")
        shown.append(summarise([row["loss"] for row in found]).shown(1, 3))
        shown += [summarise([row[key] for row in found]).shown(100, 1) for key in ("accuracy", "attacked_accuracy")]
        lines.append([*shown, f"{_mean(found, 'weight_length'):.1f}"])
    return "## Loss and robustness of groups by noise\n\n" + _lines(lines)


def _phase_part(rows: Sequence[Row]) -> str:
    levels = sorted({row["noise_std"] for row in rows})
    cells = _grouped(rows, "feature_size", "noise_std")
    lines = [["feature size", *(f"noise {level:g}" for level in levels)]]
    for size in sorted({row["feature_size"] for row in rows}, reverse=True):
        own = {level: found for (where, level), found in cells.items() if where == size}
        lines.append(
            [f"{size:g}", *(f"{_mean(own[level], 'accuracy'):.2f}" if level in own else "" for level in levels)]
        )
    return "## Accuracy by feature size and noise\n\n" + _lines(lines)


def _rotation_part(rows: Sequence[Row]) -> str:
    lines = [["fine-tuned after", "loss", "accuracy %", "worse start predicted"]]
    for arm, found in _by_arm(rows).items():
        said = {None: "", True: "yes", False: "no"}[found[0]["predicted_worse_start"]]
        loss = summarise([row["loss"] for row in found]).shown(1, 3)
        lines.append([arm, loss, summarise([row["accuracy"] for row in found]).shown(100, 1), said])
    return "## Private fine-tuning by the angle between the features\n\n" + _lines(lines)


def _ranking(rows: Sequence[Row]) -> str:
    return (
        f"Rank correlation of p x FNR with the error over {rows[0]['num_cells']} random settings: "
        f"{summarise([row['correlation'] for row in rows]).shown(1, 2)}; of the feature's size alone: "
        f"{summarise([row['control'] for row in rows]).shown(1, 2)}."
    )


def _grouped(rows: Sequence[Row], *keys: str) -> dict[tuple[Any, ...], list[Row]]:
    found: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[key] for key in keys), []).append(row)
    return found
