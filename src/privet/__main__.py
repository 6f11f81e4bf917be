"""``python -m privet``, also under ``torchrun -m privet``: the same as the command ``privet``."""

from privet.cli.main import main

if __name__ == "__main__":
    main()
