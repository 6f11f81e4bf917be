"""Mutants of runs on several ranks: the bugs that libraries for distributed private training have had."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant, one

_ROOM = "training/distributed/"
_SHARED = "tests/training/distributed/test_shared_runs.py"
_SIZES = f"{_SHARED}::test_batches_of_all_sizes_train_as_one_process_does"
_MANY_KEYS = f"{_SHARED}::test_inclusions_are_independent_over_ranks_and_noise_has_its_size"
_REFUSED = f"{_SHARED}::test_ranks_that_differ_stop_with_the_same_words"

DISTRIBUTED: tuple[Mutant, ...] = (
    one(
        "past-draws-of-the-first-rows",
        "ranks of a sharded model make past draws again for the first coordinates, whichever they hold",
        "training/randomness.py",
        "        return SharedDraws(source=self.source.numbered(number), share=self.share)",
        "        return self.source.numbered(number)",
        "tests/training/distributed/test_shares.py"
        "::test_a_share_of_a_numbered_draw_is_that_of_the_whole_draw_whenever_it_is_asked_for",
    ),
    one(
        "noise-on-each-rank",
        "every rank adds noise before the sum, and noise is added after it",
        _ROOM + "shared_step.py",
        "        self.ranks.add_up_(clipped.flat)\n",
        "        clipped.flat.add_(clipped.flat.clone().normal_() * clipped.sensitivity.total)\n"
        "        self.ranks.add_up_(clipped.flat)\n",
        _SIZES,
    ),
    one(
        "keys-of-each-rank",
        "every rank draws batches and noise from a key of its own",
        _ROOM + "shared_run.py",
        'secret=int.from_bytes(self._key[_SECRET_BYTES:], "big"))',
        'secret=int.from_bytes(self._key[_SECRET_BYTES:], "big") + self.ranks.rank)',
        f"{_SHARED}::test_ranks_share_a_secret_that_no_two_runs_have",
    ),
    one(
        "whole-batch-on-each-rank",
        "every rank sums all examples of the batch",
        _ROOM + "drawing.py",
        "            part = part if self._pads else part[:number]\n",
        "            part, number = indices[:], len(indices)\n",
        _SIZES,
    ),
    one(
        "empty-parts-are-skipped",
        "a rank without examples leaves out the step",
        _ROOM + "drawing.py",
        "            self._waiting[id(part)] = part, digest, number\n",
        "            if not number:\n                continue\n"
        "            self._waiting[id(part)] = part, digest, number\n",
        _SIZES,
    ),
    one(
        "sums-are-averaged",
        "the sum over ranks is divided by their number",
        _ROOM + "ranks.py",
        "            distributed.all_reduce(tensor, group=self.group)\n",
        "            distributed.all_reduce(tensor, group=self.group)\n            tensor /= self.size\n",
        _SIZES,
    ),
    one(
        "sums-in-half-precision",
        "clipped sums are rounded to half precision on their way",
        _ROOM + "ranks.py",
        "            distributed.all_reduce(tensor, group=self.group)\n",
        "            half = tensor.bfloat16()\n            distributed.all_reduce(half, group=self.group)\n"
        "            tensor.copy_(half)\n",
        _SIZES,
    ),
    one(
        "sent-noise-in-half-precision",
        "noise that rank 0 sends is rounded to half precision",
        _ROOM + "noise.py",
        "            part.add_(draws)\n",
        "            part.add_(draws.bfloat16())\n",
        f"{_SHARED}::test_ranks_that_round_differently_take_the_noise_of_rank_0",
    ),
    one(
        "first-weights-not-compared",
        "ranks begin with different weights",
        _ROOM + "shared_step.py",
        '        "the weights": model_digest(state.model),\n',
        "",
        _REFUSED,
    ),
    one(
        "places-not-compared",
        "ranks that are at different places of the run go on",
        _ROOM + "ranks.py",
        "if (heads[:, 0] != heads[0, 0]).any():",
        "if False:",
        _REFUSED,
    ),
    one(
        "charge-not-awaited",
        "ranks read examples before the charge of rank 0 is durable",
        _ROOM + "shared_ledger.py",
        "        self.ranks.meet(Point.CHARGING, facts)\n",
        "",
        f"{_SHARED}::test_no_rank_reads_an_example_that_rank_0_could_not_charge",
    ),
    one(
        "counts-of-each-rank",
        "every rank moves its threshold by the count of its own examples",
        _ROOM + "shared_step.py",
        "        for statistic in self.state.clipping.unreleased():\n            self.ranks.add_up_(statistic)\n",
        "",
        _SIZES,
    ),
    one(
        "checkpoint-of-rank-0-alone",
        "a resumed run goes on from the checkpoint on rank 0 alone",
        _ROOM + "shared_run.py",
        "            run.state.take(read_checkpoint(data))\n",
        "            read_checkpoint(data)\n",
        f"{_SHARED}::test_a_run_is_resumed_on_four_ranks_then_one_then_two",
    ),
    one(
        "sharded-ranks-of-unequal-length",
        "ranks of a sharded model go through it with unequal numbers of examples, and some wait for ever",
        _ROOM + "padding.py",
        "    return np.concatenate([own, indices[:missing]]), len(own)\n",
        "    return own, len(own)\n",
        "tests/training/distributed/test_shares.py::test_every_example_counts_on_one_rank_and_all_ranks_have_as_many",
    ),
    one(
        "every-rank-charges",
        "the ledger of rank 0 holds a second charge for the round of another rank",
        _ROOM + "shared_ledger.py",
        "        if not self.ranks.is_first:\n            self.ledger.reserve(event, count)\n",
        "        self.ledger.reserve(event, count)\n",
        _SIZES,
    ),
    one(
        "draws-depend-on-the-number-of-ranks",
        "who is drawn depends on how many ranks there are, so a resumed run samples otherwise than planned",
        _ROOM + "drawing.py",
        "        for indices in draw():\n",
        "        for indices in draw():\n            indices = indices[: len(indices) - self._ranks.size]\n",
        _SIZES,
    ),
    one(
        "equal-draws-of-each-part",
        "every rank draws from its own part of the data with one stream: a place is drawn on all of them or on none",
        _ROOM + "drawing.py",
        "            part, number = padded(indices, self._ranks.rank, self._ranks.size)\n",
        "            length = 12 // self._ranks.size\n"
        "            part = indices[indices < length] + length * self._ranks.rank\n            number = len(part)\n",
        _MANY_KEYS,
    ),
    one(
        "noise-of-each-rank-divided-by-their-number",
        "every rank adds its share of the noise, from a stream of its own: the sum has too little",
        _ROOM + "shared_step.py",
        "        noisy = super().add_noise()\n",
        "        before = self.clipped.flat.clone()\n        noisy = super().add_noise()\n"
        "        self.clipped.flat.sub_(before).div_(self.ranks.size**0.5).add_(before)\n",
        _MANY_KEYS,
    ),
    Mutant(
        name="later-weights-not-compared",
        breaks="ranks whose weights or optimizers differ after some steps go on to the end",
        edits=(
            Edit(
                file=_ROOM + "shared_step.py",
                old="        return {**facts, **state_facts(self.state)} if self.is_deep else facts\n",
                new="        return facts\n",
            ),
            Edit(
                file=_ROOM + "shared_run.py",
                old='{"steps in the model": run.state.steps_taken, **state_facts(run.state)}',
                new='{"steps in the model": run.state.steps_taken}',
            ),
        ),
        killed_by=(f"{_REFUSED}[unequal changes]",),
    ),
    one(
        "noise-not-compared",
        "ranks release noisy sums that differ",
        _ROOM + "shared_step.py",
        '            facts["the noisy sum"] = sampled_digest(self.clipped.flat, key=self.key)\n',
        "            pass\n",
        f"{_REFUSED}[unequal noise]",
    ),
    one(
        "unequal-physical-batches",
        "ranks of a sharded model go through it unequally often, and some wait for ever",
        _ROOM + "sharding.py",
        '        facts["the physical_batch_size"] = performance.physical_batch_size\n',
        "        pass\n",
        "tests/training/distributed/test_sharded.py::test_what_cannot_be_sharded_is_refused_in_words"
        "[unequal physical batches-RanksDisagree: .* in the physical_batch_size: rank 0 has 3]",
    ),
)
