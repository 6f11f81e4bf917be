"""Mutants of what one record is and who reads it: processes, units, tables, and the seal of the data."""

from __future__ import annotations

from tests.mutants.mutant import Mutant, one

_PROCESSES = "accounting/processes.py"
_SEVERAL = "tests/training/test_several_processes.py"

RECORDS: tuple[Mutant, ...] = (
    one(
        "started-with-others-unseen",
        "every process of a launcher trains alone, each with a ledger of its own",
        _PROCESSES,
        "if started not in _ALONE:",
        "if False:",
        _SEVERAL + "::test_a_process_that_was_started_with_others_spends_nothing",
    ),
    one(
        "process-group-unseen",
        "every process of a group trains alone, each with a ledger of its own",
        _PROCESSES,
        "group.is_initialized() and group.get_world_size() > 1",
        "group.is_initialized() and group.get_world_size() > 2",
        _SEVERAL + "::test_every_process_of_a_group_refuses_to_train_until_the_group_is_gone",
    ),
    one(
        "late-process-group-unseen",
        "a group that is formed after the ledger was opened is not seen",
        "accounting/ledger.py",
        "        check_alone()\n        self._check_usable()",
        "        self._check_usable()",
        _SEVERAL + "::test_every_process_of_a_group_refuses_to_train_until_the_group_is_gone",
    ),
    one(
        "spread-models-trained",
        "a model that is spread over processes is trained as if it were whole",
        "gradients/support.py",
        "return module.startswith(_SPREADING) and",
        "return False and",
        _SEVERAL + "::test_a_model_that_is_spread_over_processes_or_devices_is_refused",
    ),
)
