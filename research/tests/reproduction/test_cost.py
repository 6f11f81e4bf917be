from __future__ import annotations

import pytest

from privet_research.reproduction.cost import total_cost


def test_minutes_are_summed_by_device_whichever_way_a_file_tells_them() -> None:
    found = total_cost(
        [
            {"study": "a", "rows": [], "cost": {"cpu": 30.0, "NVIDIA H200": 120.0}},
            {"study": "b", "rows": [], "seconds": 60.0, "environment": {"device": "cpu"}},
            {"study": "c", "rows": [{"seconds": 60.0, "device": "NVIDIA H200"}, {"seconds": 30.0, "device": "cpu"}]},
        ]
    )
    assert found.minutes == pytest.approx({"cpu": 2.0, "NVIDIA H200": 3.0})
    assert found.shown == "2.0 min cpu; 3.0 min NVIDIA H200"


def test_a_file_that_does_not_tell_what_it_took_is_named_and_not_counted_as_nothing() -> None:
    untold = {"study": "a", "rows": [{"accuracy": 1.0}]}
    assert total_cost([untold, untold]).shown == "a: not recorded"
    assert total_cost([]).shown == "not recorded"
    assert total_cost([{"study": "b", "rows": [{"seconds": 90.0}]}, untold]).shown == (
        "1.5 min a device that is not recorded; a: not recorded"
    )


def test_rows_without_their_time_make_the_cost_a_lower_bound() -> None:
    some = {"study": "a", "rows": [{"seconds": 60.0, "device": "cpu"}, {"accuracy": 1.0}]}
    assert total_cost([some]).shown == "at least 1.0 min cpu"
