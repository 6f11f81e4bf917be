"""Mutants of the noise: its size, where it goes, and where it comes from."""

from __future__ import annotations

from tests.mutants.mutant import Edit, Mutant, one

_LAW = "tests/contract/test_noise.py::test_noise_has_the_declared_size_shape_and_independence"
_GAUSSIAN = "mechanism/noise.py"
_CALL = "add_normal(clipped.flat, std=std, source=source, keep=clipped.keep, kept=clipped.kept)"
_COUNT = "tests/mechanism/test_changing_clipping.py"
_PLAIN = "        source.add_normal(flat, std)\n        return"
_STREAM = "training/randomness.py"
_STEP = "training/session.py"
_UPDATES = "training/updates.py"
_RELEASE = "tests/training/test_release.py"
_UPDATES_TESTS = "tests/training/test_updates.py"
_DEVICE = "training/device_noise.py"
_DEVICES = "tests/training/test_device_noise.py"
_BEFORE_NOISE = Edit(
    file=_STEP,
    old="        self._batch.check_complete()\n",
    new="        self._batch.check_complete()\n        clean = self._clipped.flat.clone()\n",
)


def _scaled(factor: str, breaks: str) -> Mutant:
    new = _CALL.replace("std=std", f"std={factor} * std")
    return one(f"noise-times-{factor}", breaks, _GAUSSIAN, _CALL, new, _LAW)


NOISE = (
    _scaled("0.5", "half the noise that is charged"),
    _scaled("0.9", "nine tenths of the noise that is charged"),
    _scaled("0.98", "two percent less noise than is charged"),
    _scaled("1.02", "two percent more noise than is charged: figures about the run are wrong"),
    one(
        "noise-of-two-ranks-divided-by-two",
        "each of two processes adds noise of half the size, which adds up to 0.71 of what is charged",
        _GAUSSIAN,
        _PLAIN,
        "        source.add_normal(flat, std / 2)\n        source.add_normal(flat, std / 2)\n        return",
        _LAW,
    ),
    Mutant(
        name="noise-divided-by-physical-batches",
        breaks="noise shrinks with the number of physical batches of a step",
        edits=(
            _BEFORE_NOISE,
            Edit(
                file=_STEP,
                old="        self.is_updated, self._executed = True, noisy.executed\n",
                new="        self.is_updated, self._executed = True, noisy.executed\n"
                "        parts = max(1, -(-len(self._batch) // run.physical_batch_size))\n"
                "        noisy.value.private.flat.sub_(clean).div_(parts).add_(clean)\n",
            ),
        ),
        killed_by=(_RELEASE + "::test_engine_and_physical_batch_size_change_neither_the_result_nor_the_charge",),
    ),
    one(
        "no-noise-on-a-tenth",
        "the first tenth of the coordinates is released without noise",
        _GAUSSIAN,
        _PLAIN,
        "        source.add_normal(flat[len(flat) // 10 :], std)\n        return",
        _LAW,
    ),
    one(
        "one-draw-for-two-coordinates",
        "both coordinates of a pair get the same noise, so their difference has none",
        _STREAM,
        "return np.multiply(cosine, radius, out=cosine), np.multiply(sine, radius, out=sine)",
        "return (np.multiply(cosine, radius, out=cosine),) * 2",
        _LAW,
    ),
    one(
        "same-noise-at-every-step",
        "the keystream starts over at every call, so two releases differ by data alone",
        _STREAM,
        "        whole = flat if flat.dtype in self._lanes else flat.double()",
        "        self._cipher = Cipher(algorithms.AES(bytes(32)), modes.CTR(bytes(16))).encryptor()\n"
        "        whole = flat if flat.dtype in self._lanes else flat.double()",
        "tests/training/test_randomness.py::test_noise_is_never_drawn_twice",
    ),
    one(
        "same-keys-in-every-process",
        "a resumed run draws the noise of its first part again",
        _STREAM,
        "secrets.randbits(256) if secret is None else secret",
        "0 if secret is None else secret",
        "tests/training/test_resume.py::test_a_resumed_run_draws_fresh_noise",
        "tests/training/test_randomness.py::test_without_a_seed_two_runs_differ_in_samples_and_in_noise",
    ),
    one(
        "one-key-for-samples-and-noise",
        "whoever knows the sample knows the noise",
        _STREAM,
        "sampling, masks, noise, records = root.spawn(4)",
        "sampling = masks = noise = records = root",
        "tests/training/test_randomness.py::test_streams_of_one_seed_are_independent_of_each_other",
    ),
    one(
        "single-precision-noise-on-a-device",
        "noise never exceeds 5.8 standard deviations, which alone can cost more than delta",
        _DEVICE,
        "draws = torch.empty(min(step, flat.numel()), dtype=torch.float64, device=flat.device)",
        "draws = torch.empty(min(step, flat.numel()), dtype=torch.float32, device=flat.device)",
        "tests/contract/test_noise.py::test_a_devices_noise_is_drawn_in_double_precision_even_for_a_single_precision_sum",
    ),
    one(
        "single-precision-radius",
        "the tail of the keystream's noise ends where single precision ends",
        _STREAM,
        "np.log(np.subtract(2.0, uniform, out=uniform), out=uniform)",
        "uniform[:] = np.log(np.float32(2) - np.minimum(uniform, 2 - 2**-23).astype(np.float32))",
        "tests/contract/test_noise.py::test_the_radius_of_keystream_noise_is_drawn_in_double_precision_whatever_the_sum",
    ),
    one(
        "threads-share-a-keystream",
        "two threads make the noise of two blocks from the same part of the keystream",
        _STREAM,
        "first, *others = self._lanes_for(len(numbers), whole.dtype)",
        "first, *others = self._lanes_for(len(numbers), whole.dtype)[:1] * 2",
        "tests/training/test_randomness.py::test_draws_do_not_depend_on_the_number_of_threads",
    ),
    one(
        "forked-child-may-draw",
        "a forked worker repeats its parent's noise",
        _STREAM,
        "if os.getpid() != self.process:",
        "if os.getpid() == 0:",
        "tests/training/test_randomness.py::test_streams_refuse_to_be_used_by_another_process",
    ),
    one(
        "noise-for-the-largest-group-only",
        "with several groups the noise is scaled to one bound instead of all together",
        _GAUSSIAN,
        "std = self.multiplier * clipped.sensitivity.total",
        "std = self.multiplier * max(clipped.sensitivity.bounds)",
        _LAW,
    ),
    one(
        "event-from-the-plan",
        "the ledger is told what was planned, whatever bound was really used",
        _GAUSSIAN,
        "event=gaussian_event(bounds=bounds, stds=(std,) * len(bounds)),",
        "event=self.event(),",
        "tests/contract/test_noise_pieces.py::test_the_event_follows_the_bound_that_was_really_used",
    ),
    one(
        "noise-on-the-masked-coordinates",
        "the coordinates that are released get no noise, the masked ones get it",
        _GAUSSIAN,
        "index = keep.nonzero().squeeze(1) if kept is None else kept.index",
        "index = keep.logical_not().nonzero().squeeze(1)",
        "tests/contract/test_noise.py::test_masked_coordinates_stay_exactly_zero_and_kept_ones_get_full_noise",
    ),
    one(
        "group-noise-of-the-first-group",
        "every group gets the noise of the first, and is charged its own",
        "mechanism/shaped_noise.py",
        "std=stds[group], source=source, keep=keep)",
        "std=min(stds), source=source, keep=keep)",
        "tests/mechanism/test_geometry.py",
        "tests/training/test_noise_kinds.py",
    ),
    one(
        "elliptical-noise-times-0.9",
        "nine tenths of the noise in the units of a geometry",
        "mechanism/shaped_noise.py",
        _CALL,
        _CALL.replace("std=std", "std=0.9 * std"),
        "tests/mechanism/test_geometry.py",
        "tests/training/test_noise_kinds.py",
    ),
    one(
        "radial-noise-times-0.9",
        "nine tenths of the charged noise of exponential length",
        "mechanism/laplace.py",
        "add_radial(clipped.flat, scale=std / math.sqrt(live + 1)",
        "add_radial(clipped.flat, scale=0.9 * std / math.sqrt(live + 1)",
        "tests/mechanism/test_laplace.py",
    ),
    one(
        "two-sided-noise-times-0.9",
        "nine tenths of the charged Laplace noise",
        "mechanism/laplace.py",
        "add_two_sided(clipped.flat, scales=scales,",
        "add_two_sided(clipped.flat, scales=0.9 * scales,",
        "tests/mechanism/test_laplace.py",
    ),
    one(
        "count-without-noise",
        "the learned threshold reveals how many gradients were short",
        "mechanism/changing_clipping.py",
        "        source.add_normal(count, std)\n",
        "",
        "tests/mechanism/test_changing_clipping.py",
    ),
    Mutant(
        name="count-not-charged",
        breaks="the noisy count of a learned threshold is released for nothing",
        edits=(
            Edit(
                file="mechanism/changing_clipping.py",
                old="return _joined(event, counted.noise_multiplier)",
                new="return event",
            ),
            Edit(
                file="mechanism/changing_clipping.py",
                old="return _joined(event, self.count_noise_std / _COUNT_BOUND)",
                new="return event",
            ),
        ),
        killed_by=(_COUNT + "::test_sum_and_count_cost_one_fused_gaussian_for_every_number_of_groups",),
    ),
    one(
        "count-not-centred",
        "one example moves the count by one, and half is charged",
        "mechanism/changing_clipping.py",
        ".double().sub_(_COUNT_BOUND).sum(0)",
        ".double().sum(0)",
        "tests/mechanism/test_changing_clipping.py::test_one_example_moves_each_count_by_one_half_whatever_its_norms",
    ),
    Mutant(
        name="ranking-before-noise",
        breaks="the mask is chosen by sums before noise, which releases them",
        edits=(
            _BEFORE_NOISE,
            Edit(
                file=_STEP,
                old="run.mask.watch(noisy.value.private, kept=self.kept)",
                new="flat, noisy.value.private.flat = noisy.value.private.flat, clean\n"
                "            run.mask.watch(noisy.value.private, kept=self.kept)\n"
                "            noisy.value.private.flat = flat",
            ),
        ),
        killed_by=("tests/training/test_masks.py::test_a_ranking_depends_on_released_sums_alone",),
    ),
    one(
        "recorded-noise-of-another-plan",
        "a recording is replayed whatever noise is asked for, and charged as what was asked",
        _UPDATES,
        "return self._recorded.get(key) or",
        "return next(iter(self._recorded.values()), None) or",
        _UPDATES_TESTS + "::test_a_recording_is_replayed_for_its_own_noise_alone",
    ),
    one(
        "recordings-blind-to-noise",
        "noise of one size is recorded and replayed where another is due",
        _UPDATES,
        "else (noise.noise, total.sensitivity, total.flat.data_ptr(), settings)",
        "else (total.sensitivity, total.flat.data_ptr(), settings)",
        _UPDATES_TESTS + "::test_another_noise_bound_rate_or_memory_never_meets_an_old_recording",
    ),
    one(
        "recordings-blind-to-the-bound",
        "noise for one bound is replayed after the bound has grown",
        _UPDATES,
        "else (noise.noise, total.sensitivity, total.flat.data_ptr(), settings)",
        "else (noise.noise, total.flat.data_ptr(), settings)",
        _UPDATES_TESTS + "::test_another_noise_bound_rate_or_memory_never_meets_an_old_recording",
    ),
    one(
        "recorded-noise-of-any-size",
        "a recording that draws less than it is charged for is used",
        _UPDATES,
        "if std is not None and not abs(float((newest / std).square().mean()) - 1.0) <= slack + 1e-3:",
        "if std is not None and abs(float((newest / std).square().mean()) - 1.0) > 1e9:",
        _UPDATES_TESTS + "::test_draws_of_the_wrong_size_or_drawn_twice_are_refused",
    ),
    one(
        "recorded-noise-drawn-once",
        "a recording that repeats its noise at every replay is used",
        _UPDATES,
        ".double().mean() > 0.5):",
        ".double().mean() > 1.5):",
        _UPDATES_TESTS + "::test_draws_of_the_wrong_size_or_drawn_twice_are_refused",
    ),
    one(
        "any-optimizer-recorded",
        "a recording freezes what an optimizer works out anew, and hooks that guard it run once",
        _UPDATES,
        "is_plain = type(optimizer) is SGD and noise.noise.is_recordable",
        "is_plain = isinstance(optimizer, Optimizer) and noise.noise.is_recordable",
        _UPDATES_TESTS + "::test_only_plain_sgd_is_ever_recorded",
    ),
    one(
        "device-counter-stands-still",
        "noise made on a device repeats itself at every step",
        _DEVICE,
        "self._state[1:].add_(pairs)",
        "self._state[1:].add_(0)",
        _DEVICES + "::test_the_counter_moves_on_by_what_was_drawn_so_that_nothing_is_drawn_twice",
    ),
    one(
        "device-counter-counts-blocks",
        "noise made on a device overlaps that of the step before",
        _DEVICE,
        "self._state[1:].add_(pairs)",
        "self._state[1:].add_(pairs // 2)",
        _DEVICES + "::test_the_counter_moves_on_by_what_was_drawn_so_that_nothing_is_drawn_twice",
    ),
    one(
        "broken-kernel-used",
        "a kernel that draws the wrong noise is used all the same",
        _DEVICE,
        "return FusedNoise(for_kernel, self._device) if works else TorchNoise(for_torch, self._device)",
        "return FusedNoise(for_kernel, self._device)",
        _DEVICES + "::test_a_kernel_that_draws_wrongly_is_never_used",
    ),
    one(
        "gradients-follow-the-buffer",
        "p.grad is a view of the next step's sum before its noise",
        "mechanism/sums.py",
        ".of(divided(self.flat, divisor))",
        ".of(self.flat.div_(divisor))",
        "tests/mechanism/test_sums.py::test_written_gradients_do_not_follow_the_buffer_into_the_next_step",
    ),
)
