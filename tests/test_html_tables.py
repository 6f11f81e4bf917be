"""What a notebook shows of plans, guarantees, ledgers and measures: the figures, and no markup from a text."""

from __future__ import annotations

from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import privet as pv
from privet.errors import LoopError
from privet.html_tables import facts_table
from privet.runs.measures import Metrics, share

NASTY = "<script>alert('x')</script>&\""


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def plan() -> pv.Plan:
    return pv.Plan.dpsgd(dataset_size=40, batch_size=4, steps=6, noise_multiplier=1.0, delta=1e-3)


def session(folder: Path | None = None) -> pv.Session:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    data = TensorDataset(torch.randn(40, 3), torch.randint(0, 2, (40,)))
    return pv.privatize(model, torch.optim.SGD(model.parameters(), lr=0.5), data, plan(), folder=folder)


def walk(private: pv.Session, *, until: int | None = None) -> None:
    for step in private.steps():
        step.accumulate(lambda x, y: functional.cross_entropy(private.model(x), y, reduction="none"))
        step.update()
        if step.index + 1 == until:
            break


def test_every_text_in_a_table_is_escaped() -> None:
    found = Tags(facts_table(NASTY, {NASTY: NASTY}, notes=[NASTY], about=NASTY))
    assert "script" not in found.tags
    assert found.text.count(NASTY) == 5


def test_a_plan_and_its_guarantee_show_their_terms() -> None:
    guarantee = plan().guarantee()
    for shown in (plan()._repr_html_(), guarantee._repr_html_()):
        assert str(guarantee) in Tags(shown).text
    noisy = replace(guarantee, assumptions=(NASTY,))
    assert "script" not in Tags(noisy._repr_html_()).tags
    bare = replace(plan(), noise=pv.Gaussian())
    assert "No guarantee yet" in Tags(bare._repr_html_()).text


def test_a_ledger_a_session_and_measures_show_public_facts(tmp_path: Path) -> None:
    private = session(tmp_path)
    with private:
        walk(private, until=2)
        assert "2 of 6" in Tags(private._repr_html_()).text or "6 of 6" in Tags(private._repr_html_()).text
    found = Tags(pv.Ledger.read(tmp_path / "ledger.jsonl")._repr_html_())
    assert "rounds charged2" in found.text.replace("\n", "")
    assert "not covered by the guarantee" in Metrics(measures=(share("accuracy", 3, 4),))._repr_html_()


def test_a_session_goes_on_in_the_next_cell() -> None:
    private = session().open()
    walk(private, until=2)
    assert private.steps_taken == 2
    walk(private, until=4)
    assert private.steps_taken == 4
    walk(private)
    private.close()
    private.close()
    assert private.is_complete
    assert private.guarantee().epsilon == plan().guarantee().epsilon


def test_an_interrupted_cell_costs_its_step_and_the_next_cell_goes_on() -> None:
    private = session().open()
    walk(private, until=2)

    def interrupted(*batch: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        next(private.steps()).accumulate(interrupted)
    with pytest.raises(LoopError, match="give_up_step"):
        walk(private)
    private.give_up_step()
    walk(private)
    private.close()
    assert private.steps_taken == 5
    assert private.guarantee().epsilon == plan().guarantee().epsilon


@pytest.mark.parametrize("plot", ["plot_spending", "plot_trade_off", "plot_noise"])
def test_plots_draw_into_the_axes_they_are_given_and_return_them(plot: str) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure()
    axes = figure.subplots()
    more = ([1.0, 3.0],) if plot == "plot_noise" else ()
    assert getattr(pv.reports, plot)(plan(), *more, axes) is axes
    assert axes.lines
    made = getattr(pv.reports, plot)(plan(), *more)
    assert made is not axes
    assert made.get_xlabel()
