"""The cost of a private step: every engine and the installed rival libraries against plain training, on eight models.

    python -m benchmarks run --device cuda --json runs/bench.json --markdown runs/bench.md
    python -m benchmarks check --scale tiny
    python -m benchmarks growth --figure runs/growth.svg
    python -m benchmarks table runs/bench.json
    python -m benchmarks.first_step --device cuda

Only ratios within one run are meaningful: contenders take turns, round by round, in one process. A rival that is not
installed, or that refuses a model, is a row with the reason.
"""
