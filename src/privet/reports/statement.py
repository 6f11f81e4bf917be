"""The guarantee of a run in sentences and figures, for readers of a report."""

from __future__ import annotations

from collections.abc import Mapping

from privet.accounting.guarantee import Guarantee, rounded_up, trade_off
from privet.reports.content import RunContent
from privet.vocabulary import Release

ATTACK_RATES = (0.001, 0.01, 0.1)
_RELEASES: Mapping[Release, str] = {
    Release.EVERY_ITERATE: "the model after every training step (every iterate)",
    Release.LAST_ITERATE: "the final model only (last iterate)",
}


def terms(content: RunContent) -> list[tuple[str, str]]:
    """Return the terms of the guarantee as (name, text); for a run that is not private, only sampling and noise."""
    spent, plan = content.ledger.spent, content.plan
    run = [
        ("Sampling", _sampling(content)),
        ("Noise", f"noise multiplier {plan.noise.noise_multiplier or 0:.4f}, relative to the clipping bound"),
    ]
    if spent.not_private_because:
        return [("Protected", "nothing: no figure on this page is a promise"), *run]
    found = [
        *protection(spent),
        ("Budget spent", f"epsilon {rounded_up(spent.epsilon)} at delta {rounded_up(spent.delta)}"),
    ]
    if spent.mu is not None:
        found.append(("Gaussian DP", f"mu at most {rounded_up(spent.mu, 3)}, up to delta"))
    found += [
        ("Accountant", _accountant(spent)),
        *run,
        (
            "Hyper-parameter search",
            "not counted: the ledger is of one run. Choosing among several runs on the same private data costs extra.",
        ),
    ]
    return found


def protection(spent: Guarantee) -> list[tuple[str, str]]:
    """Return the protected unit and the release as (name, text)."""
    return [
        ("Protected", f"one {spent.unit.value}: {spent.adjacency.words(spent.unit)}"),
        ("Visible to an attacker", _RELEASES[spent.released]),
    ]


def promise(spent: Guarantee) -> str:
    """Return the guarantee in sentences, without its assumptions, which a report lists below it."""
    return spent.statement().removesuffix("".join(f" It assumes that {each}." for each in spent.assumptions))


def _accountant(spent: Guarantee) -> str:
    text = f"{spent.accountant}, an upper bound" if spent.is_upper_bound else f"{spent.accountant}, not a bound"
    if spent.cross_check is not None:
        text += f"; checked against the independent RDP bound, {rounded_up(spent.cross_check)}"
    return text


def _sampling(content: RunContent) -> str:
    """Describe the sampling of the charged steps; a run may end before its plan does."""
    planned, charged = content.plan.num_steps, content.ledger.steps_charged
    text = content.plan.sampling.described(charged)
    return text if charged == planned else f"{text}; {charged:,} of {planned:,} planned steps are charged"


def attack_bounds(content: RunContent, *, with_schema: bool = False) -> list[tuple[float, float]]:
    """Return (false-positive rate, largest possible true-positive rate) of any membership attack.

    Args:
        content: The run.
        with_schema: Whether the attacker also sees the schema, where that was released from the private records.
    """
    spent, event = content.ledger.spent, content.ledger.event
    if with_schema and content.in_all is not None:
        event = content.in_all.event
    elif content.ledger.rounds_charged == 0:
        return [(rate, rate) for rate in ATTACK_RATES]
    misses = trade_off(event, adjacency=spent.adjacency, false_positive_rates=ATTACK_RATES)
    return [(rate, float(1 - miss)) for rate, miss in zip(ATTACK_RATES, misses, strict=True)]


def percent(value: float) -> str:
    """Return a limit as a percentage with three significant digits, rounded up."""
    return f"{rounded_up(100 * value, 3)} %"
