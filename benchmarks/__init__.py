"""What a private step costs: every engine and the installed rivals beside plain training, on eight models.

    python -m benchmarks run --device cuda --json runs/bench.json --markdown runs/bench.md
    python -m benchmarks check --scale tiny
    python -m benchmarks growth --figure runs/growth.svg
    python -m benchmarks table runs/bench.json
    python -m benchmarks.first_step --device cuda

Only ratios within one run mean anything: contenders take turns, round by round, in one process. Rivals that are not
installed, or that refuse a model, are rows with the reason.
"""
