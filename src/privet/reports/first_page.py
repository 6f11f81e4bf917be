"""The first page of a report: the promise, whom it is made to, its cost and its limits, in everyday words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from privet.accounting.guarantee import rounded_up
from privet.reports.content import RunContent
from privet.reports.messages import Messages
from privet.reports.private_figure_rows import shown
from privet.reports.statement import attack_bounds, percent
from privet.runs.recipes.data_sheet import DataSheet

# Ends of the zones of epsilon on the scale, as docs/choosing-epsilon.md words them; the scale is logarithmic.
_SCALE = ((0.1, 1.0, "strong"), (1.0, 8.0, "usual"), (8.0, 20.0, "weak"), (20.0, 60.0, "none"))
_RATE = 0.01


@dataclass(frozen=True, kw_only=True)
class Zone:
    """A part of the scale: its words, its ends, and its share of the width in percent."""

    words: str
    low: str
    high: str
    width: float
    holds: bool


@dataclass(frozen=True, kw_only=True)
class FirstPage:
    """The texts of the page, in one language.

    Attributes:
        language: Its code.
        title: The heading.
        parts: Headings with their paragraphs.
        scale_title: The heading of the scale.
        scale_text: The sentence above it.
        zones: The zones of the scale; empty where nothing is promised.
        place: Where epsilon lies on it, in percent.
        epsilon: Epsilon as text.
        uncovered_title: The heading of the limits.
        uncovered: The limits.
        words_title: The heading of the glossary.
        words: Words with their explanations.
        sheet_title: The heading of the data sheet.
        sheet: Fields with their texts, None for one to be filled in.
        sheet_empty: What stands in such a field.
        sign_title: The heading of the signatures.
        sign_text: The sentence above them.
        signers: Who signs.
        sign_fields: What each writes.
    """

    language: str
    title: str
    parts: tuple[tuple[str, tuple[str, ...]], ...]
    scale_title: str
    scale_text: str
    zones: tuple[Zone, ...]
    place: float
    epsilon: str
    uncovered_title: str
    uncovered: tuple[str, ...]
    words_title: str
    words: tuple[tuple[str, str], ...]
    sheet_title: str
    sheet: tuple[tuple[str, str | None], ...]
    sheet_empty: str
    sign_title: str
    sign_text: str
    signers: tuple[str, ...]
    sign_fields: tuple[str, ...]


def first_page(content: RunContent, *, language: str = "en", sheet: DataSheet | None = None) -> FirstPage:
    """Return the first page of a run.

    Guarantee: every figure about privacy is that of the ledger, rounded up; where the schema was released from the
    private records, it is that of both ledgers together, because a reader of this page reads no other. Measures appear
    only where they are covered by the guarantee or the data are public.

    Args:
        content: The run.
        language: Its language.
        sheet: The data sheet; that of the recipe if not given.
    """
    say = Messages.of(language)
    spent = content.ledger.spent if content.in_all is None else content.in_all.guarantee
    unit, is_promised = say(f"unit_{spent.unit.value}"), not spent.not_private_because
    told = sheet if sheet is not None else (content.recipe.data_sheet if content.recipe is not None else None)
    filled = (told or DataSheet()).model_dump()
    factor = rounded_up(math.exp(spent.epsilon)) if spent.epsilon < 100 else "10^40"
    words = {"epsilon": {"unit": unit, "odds": factor}, "delta": {"delta": rounded_up(spent.delta)}}
    words |= {"noise": {"unit": unit}, "ledger": {}}
    return FirstPage(
        language=language,
        title=say("title"),
        parts=(
            (say("promised"), _promised(content, say, unit)),
            *(((say("whom"), (say(f"whom_{spent.unit.value}"),)),) if is_promised else ()),
            (say("cost"), _cost(content, say)),
        ),
        scale_title=say("scale"),
        scale_text=_scale_text(content, say, spent.epsilon),
        zones=_zones(spent.epsilon, say) if is_promised else (),
        place=_place(spent.epsilon),
        epsilon=say.number(rounded_up(spent.epsilon)),
        uncovered_title=say("uncovered"),
        uncovered=tuple(say(f"uncovered_{name}") for name in ("learned", "new", "wrong", "other", "exact")),
        words_title=say("words"),
        words=tuple((say(f"word_{name}"), say(f"word_{name}_text", **values)) for name, values in words.items()),
        sheet_title=say("sheet"),
        sheet=tuple((say(f"sheet_{name}"), filled[name]) for name in DataSheet.model_fields),
        sheet_empty=say("sheet_empty"),
        sign_title=say("sign"),
        sign_text=say("sign_text"),
        signers=tuple(say(f"sign_{who}") for who in ("responsible", "officer", "third")),
        sign_fields=tuple(say(f"sign_{field}") for field in ("name", "date", "signature")),
    )


def _scale_text(content: RunContent, say: Messages, epsilon: float) -> str:
    text = say("scale_text", epsilon=rounded_up(epsilon))
    if content.in_all is None:
        return text
    run, schema = rounded_up(content.ledger.spent.epsilon), rounded_up(content.in_all.schema_epsilon)
    return f"{text} {say('scale_schema', run=run, schema=schema)}"


def _promised(content: RunContent, say: Messages, unit: str) -> tuple[str, ...]:
    spent = content.ledger.spent
    if spent.not_private_because:
        return (say("not_private_text", reasons="; ".join(spent.not_private_because)),)
    found = next(found for rate, found in attack_bounds(content, with_schema=True) if rate == _RATE)
    return (say("promised_text", unit=unit), say("odds_text", unit=unit, found=percent(found)))


def _cost(content: RunContent, say: Messages) -> tuple[str, ...]:
    sentences = []
    if not content.ledger.spent.not_private_because:
        sentences.append(say("cost_text", spent=say("cost_all" if content.is_finished else "cost_part")))
    if content.evaluation is not None:
        figures = content.evaluation.figures
        first = figures.headline[0]
        ends = {"low": shown(first, first.low), "high": shown(first, first.high)}
        told = {"name": say.measure(first.name), "value": shown(first, first.value), **ends}
        constant = next((shown(each, each.value) for each in figures.constant if each.name == first.name), None)
        if constant is None:
            sentences.append(say("cost_measured_alone", **told))
        else:
            sentences.append(say("cost_measured", **told, constant=constant))
        if figures.warnings:
            is_first = any(f" in {first.name} " in warning for warning in figures.warnings)
            sentences.append(say("cost_useless" if is_first else "cost_useless_partly"))
    elif content.metrics is not None and content.metrics.measures and content.is_public:
        row = content.metrics.measures[0]
        texts = [f"{100 * x:.1f} %" if row.name == "accuracy" else f"{x:.3g}" for x in (row.value, row.low, row.high)]
        name = say.measure(row.name)
        sentences.append(say("cost_measured_alone", name=name, value=texts[0], low=texts[1], high=texts[2]))
    else:
        sentences.append(say("cost_unmeasured"))
    return tuple(sentences)


def _place(epsilon: float) -> float:
    """Return where epsilon lies on the scale, in percent of its width."""
    first, last = math.log(_SCALE[0][0]), math.log(_SCALE[-1][1])
    inside = min(max(epsilon, _SCALE[0][0]), _SCALE[-1][1])
    return round(100 * (math.log(inside) - first) / (last - first), 1)


def _zones(epsilon: float, say: Messages) -> tuple[Zone, ...]:
    return tuple(
        Zone(
            words=say(f"scale_{name}"),
            low=f"{low:g}",
            high=f"{high:g}",
            width=_place(high) - _place(low),
            holds=(low < epsilon or low == _SCALE[0][0]) and (epsilon <= high or high == _SCALE[-1][1]),
        )
        for low, high, name in _SCALE
    )
