"""The cost of a private step: every engine and the installed rival libraries against plain training, on eight models.

``session`` times whole sessions as users run them, also on public models of transformers and torchvision.

    python -m benchmarks run --device cuda --json runs/bench.json --markdown runs/bench.md
    python -m benchmarks session --device cuda --json runs/session.json --markdown runs/session.md
    python -m benchmarks check --scale tiny
    python -m benchmarks growth --figure runs/growth.svg
    python -m benchmarks table runs/bench.json
    python -m benchmarks.first_step --device cuda
    python -m benchmarks.versions --before ../old/src --after src

Only ratios within one run are meaningful: contenders take turns, round by round, in one process. A rival that is not
installed, or that refuses a model, is a row with the reason.
"""
