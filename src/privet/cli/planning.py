"""``privet plan``: the guarantee and the cost of a recipe, without data and without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from privet.cli import console

if TYPE_CHECKING:
    from privet.plan import Plan
    from privet.runs.recipes.recipe import Recipe

_BYTES = 4
# Copies of the weights: weights, gradients and clipped sum. The noise is drawn in chunks and not counted.
_COPIES = 3
_NOISES_OF_PERSONS = ("noise_multiplier", "noise_if_alike", "noise_if_different")


@console.command("privet plan demo --set privacy.epsilon=1")
@console.recipe_argument
@console.set_option
@console.quick_option
@click.option("--compare-noise", "compares", is_flag=True, help="Also compare other kinds of noise at this guarantee.")
@click.option("--compare-persons", "of_persons", is_flag=True, help="Also compare both ways to protect persons.")
@console.json_option
def plan(recipe: str, overrides: tuple[str, ...], quick: bool, compares: bool, of_persons: bool, as_json: bool) -> None:
    """Show the guarantee of RECIPE, before any data is read.

    RECIPE is the name of a packaged recipe or the path of a TOML file.
    """
    from privet.runs.recipes.recipe_files import load_recipe

    loaded = load_recipe(recipe, overrides, quick=quick)
    made = loaded.plan()
    for warning in (loaded.warning, made.guarantee().weakness):
        if warning is not None:
            console.remark(f"warning: {warning}")
    found = _facts(loaded, made)
    if compares:
        found["noise_comparison"] = _comparison(loaded, made)
    if of_persons:
        found["person_comparison"] = _persons(loaded, made)
        found["band_comparison"] = _bands(loaded, made)
    if as_json:
        console.show_json(found)
        return
    _print(loaded, made, found)
    if compares:
        _print_comparison(found["noise_comparison"])
    if of_persons:
        _print_persons(found["person_comparison"])
        _print_bands(found["band_comparison"])


def _facts(recipe: Recipe, plan: Plan) -> dict[str, Any]:
    guarantee = plan.guarantee()
    return {
        "recipe": recipe.title,
        "guarantee": guarantee.to_dict(),
        "statement": guarantee.statement(),
        "plan": plan.to_dict(),
        "plan_hash": plan.hash,
        "steps": plan.num_steps,
        "expected_examples_per_step": plan.sampling.expected_batch_size,
        "parameters": _parameters(recipe),
        "memory_bytes": _memory(recipe),
        "alternatives": _alternatives(recipe, plan),
        "clt_approximation_not_a_bound": _central_limit(plan),
        "epsilon_if_every_iterate_were_seen": _epsilon_of_every_iterate(plan),
    }


def _parameters(recipe: Recipe) -> int | None:
    from privet.models.model_sizes import num_parameters

    return num_parameters(recipe.model, recipe.info.input_shape, recipe.info.task.num_outputs)


def _memory(recipe: Recipe) -> dict[str, int] | None:
    import math

    count = _parameters(recipe)
    if count is None:
        return None
    states = recipe.training.optimizer.numbers_per_weight
    data = (recipe.info.train_size + recipe.info.test_size) * math.prod(recipe.info.input_shape)
    return {"model_and_optimizer": count * (_COPIES + states) * _BYTES, "data": data * _BYTES}


def _alternatives(recipe: Recipe, plan: Plan) -> list[dict[str, Any]]:
    """Return the noise multipliers of half, the same and double the epsilon."""
    from privet.errors import CalibrationError

    target = recipe.privacy.epsilon or plan.guarantee().epsilon
    rows: list[dict[str, Any]] = []
    for factor in (0.5, 1.0, 2.0):
        try:
            other = plan if factor == 1 else plan.calibrated(epsilon=target * factor)
            multiplier = _multiplier(other)
        except CalibrationError:
            multiplier = None
        rows.append({"epsilon": target * factor, "noise_multiplier": multiplier})
    return rows


def _multiplier(plan: Plan) -> float | None:
    return plan.noise.noise_multiplier


def _central_limit(plan: Plan) -> float | None:
    import math

    from privet.accounting.gaussian_dp import clt_mu
    from privet.vocabulary import Adjacency

    multiplier = _multiplier(plan)
    is_poisson = plan.sampling.has_independent_coins and plan.sampling.inclusion < 1
    if not is_poisson or plan.adjacency is not Adjacency.ADD_REMOVE or multiplier is None:
        return None
    figure = clt_mu(rate=plan.sampling.inclusion, noise_multiplier=multiplier, num_steps=plan.num_steps)
    epsilon = figure.epsilon(plan.delta)
    # With very little noise the approximation is infinite, and JSON has no infinity.
    return epsilon if math.isfinite(epsilon) else None


def _comparison(recipe: Recipe, plan: Plan) -> list[dict[str, Any]]:
    """Return the costs of every kind of noise at the recipe's guarantee, with equal weights."""
    from privet.errors import ArgumentError
    from privet.runs.noise_comparison import compare_noise

    count = _parameters(recipe)
    if count is None:
        raise ArgumentError(
            "--compare-noise needs the number of parameters, which is unknown before this network is built. Use "
            "privet.runs.noise_comparison.compare_noise with the number."
        )
    target = recipe.privacy.epsilon or plan.guarantee().epsilon
    return [
        {
            "noise": row.name,
            "cost_per_coordinate": row.cost,
            "over_gaussian": row.over_gaussian,
            "signal_to_noise_at_most": row.signal_to_noise,
            "remark": row.remark,
        }
        for row in compare_noise(plan, num_coordinates=count, epsilon=target)
    ]


def _persons(recipe: Recipe, plan: Plan) -> list[dict[str, Any]]:
    """Return the noise of both ways to protect persons at the recipe's guarantee."""
    from privet.runs.person_comparison import compare_persons, declared_persons

    num_persons = None if recipe.file is None else recipe.file.num_persons
    declared = declared_persons(plan, num_records=recipe.info.train_size, num_persons=num_persons)
    target = recipe.privacy.epsilon or plan.guarantee().epsilon
    return [
        {
            "way": row.name,
            "records_per_person": row.max_records,
            **{name: getattr(row, name) for name in _NOISES_OF_PERSONS},
        }
        for row in compare_persons(plan, declared, epsilon=target)
    ]


def _print_persons(rows: list[dict[str, Any]]) -> None:
    click.echo()
    click.echo(
        "Ways to protect a person at the same guarantee and records per step, or all records that a cap leaves: noise"
    )
    click.echo(
        "of the mean gradient over the bound, if the records of one person are alike, and if they differ entirely."
    )
    click.echo()
    shown = [
        [row["way"], str(row["records_per_person"])]
        + ["out of reach" if row[name] is None else f"{row[name]:.4g}" for name in _NOISES_OF_PERSONS]
        for row in rows
    ]
    heads = ["way", "records per person", "noise multiplier", "if alike", "if different"]
    console.show_table(heads, shown, right=(1, 2, 3, 4))


def _print_comparison(rows: list[dict[str, Any]]) -> None:
    click.echo()
    click.echo("Kinds of noise at the same guarantee: mean absolute noise of a coordinate over the clipping bound.")
    click.echo()
    shown = [
        [
            row["noise"],
            "out of reach" if row["cost_per_coordinate"] is None else f"{row['cost_per_coordinate']:.4g}",
            "" if row["over_gaussian"] is None else f"{row['over_gaussian']:.3f} x",
            "" if row["signal_to_noise_at_most"] is None else f"{row['signal_to_noise_at_most']:.3g}",
            row["remark"],
        ]
        for row in rows
    ]
    console.show_table(["noise", "mean size", "over Gaussian", "signal to noise at most", ""], shown, right=(1, 2, 3))


def _bands(recipe: Recipe, plan: Plan) -> dict[str, Any]:
    """Return the error of the weights for every number of bands at the recipe's guarantee, and the best one."""
    from privet.errors import PlanError
    from privet.runs.band_comparison import best_bands, compare_bands

    optimizer = recipe.training.optimizer
    target = recipe.privacy.epsilon or plan.guarantee().epsilon
    try:
        rows = compare_bands(
            plan, epsilon=target, momentum=optimizer.momentum_of_updates, kept_weight=optimizer.kept_weight
        )
    except PlanError as error:
        return {"rows": [], "best": None, "remark": str(error)}
    best = best_bands(rows)
    return {
        "rows": [
            {
                "bands": row.bands,
                "noise_multiplier": row.plan.noise.noise_multiplier,
                "error_of_weights": row.error,
                "over_independent": row.over_independent,
                "vectors_in_memory": row.vectors,
            }
            for row in rows
        ],
        "best": best.bands if best.pays else None,
        "remark": "",
    }


def _print_bands(found: dict[str, Any]) -> None:
    click.echo()
    if found["remark"]:
        click.echo(console.paragraphs(f"Noise that is correlated between steps: {found['remark']}"))
        return
    click.echo("Noise that is correlated between steps (BandedGaussian): error of the summed updates over the bound.")
    click.echo()
    shown = [
        [
            str(row["bands"]),
            f"{row['noise_multiplier']:.4f}",
            f"{row['error_of_weights']:.4g}",
            f"{row['over_independent']:.3f} x",
            str(row["vectors_in_memory"]),
        ]
        for row in found["rows"]
    ]
    console.show_table(
        ["bands", "noise multiplier", "error", "over independent", "vectors kept"], shown, right=(0, 1, 2, 3, 4)
    )
    click.echo()
    best = found["best"]
    click.echo(
        "It does not pay here: it gains less than a twentieth."
        if best is None
        else f"It pays: use BandedGaussian noise of {best} bands with CyclicPoisson sampling of {best} groups."
    )


def _epsilon_of_every_iterate(plan: Plan) -> float | None:
    """Return epsilon of the same run if every iterate were released; None where the guarantee allows that."""
    from privet.accounting.charges import HypotheticalCharges
    from privet.vocabulary import Release

    if plan.release is Release.EVERY_ITERATE:
        return None
    return plan.account(HypotheticalCharges(planned=plan.segments)).epsilon


def _print(recipe: Recipe, plan: Plan, found: dict[str, Any]) -> None:
    guarantee = plan.guarantee()
    console.show_heading(f"{recipe.title}: {guarantee}")
    click.echo()
    click.echo(console.paragraphs(guarantee.statement()))
    click.echo()
    count, memory, multiplier = found["parameters"], found["memory_bytes"], _multiplier(plan)
    shown = "not known before the network is built"
    if memory is not None:
        shown = (
            f"{_size(memory['model_and_optimizer'])} for the model and its optimizer, {_size(memory['data'])} for data"
        )
    facts = {
        "noise multiplier": "" if multiplier is None else f"{multiplier:.4f}",
        "steps": f"{plan.num_steps:,}",
        "examples per step": f"{plan.sampling.expected_batch_size:,g} expected",
        "parameters": "not known before the network is built" if count is None else f"{count:,}",
        "memory": f"{shown}; activations on top" if memory is not None else shown,
    }
    clt = found["clt_approximation_not_a_bound"]
    if clt is not None:
        facts["for comparison"] = (
            f"\N{GREEK SMALL LETTER EPSILON} {clt:.3f} by the central limit (approximation, not a bound)"
        )
    seen = found["epsilon_if_every_iterate_were_seen"]
    if seen is not None:
        facts["if every iterate were seen"] = f"\N{GREEK SMALL LETTER EPSILON} {seen:.4g}: keep checkpoints to yourself"
    console.show_facts(facts)
    click.echo()
    rows = [
        [
            f"{row['epsilon']:.4g}",
            "out of reach" if row["noise_multiplier"] is None else f"{row['noise_multiplier']:.4f}",
            "" if not (row["noise_multiplier"] and multiplier) else f"{row['noise_multiplier'] / multiplier:.2f} x",
        ]
        for row in found["alternatives"]
    ]
    console.show_table(["epsilon", "noise multiplier", "noise"], rows, right=(0, 1, 2))


def _size(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:,.1f} MB" if num_bytes < 1e9 else f"{num_bytes / 1e9:,.2f} GB"
