"""The files of a private run inside the output folder of a trainer.

transformers writes ``optimizer.pt``, ``scheduler.pt`` and ``training_args.bin`` with pickle. They are its own: it reads
the first two with ``weights_only``, and nothing here reads any of them. A guarantee rests on the ledger, and
the run goes on from ``privet_state.safetensors`` in the trainer's checkpoint.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from privet.accounting.guarantee import Guarantee
from privet.errors import CheckpointError, LedgerError
from privet.integrations.hugging_face.private_run import PrivateRun
from privet.training.folder import RunFolder

STATE_NAME = "privet_state.safetensors"
_HEADING = "## Privacy"


@dataclass(frozen=True, kw_only=True)
class TrainerFiles:
    """Where the files of one run are.

    Attributes:
        output: The trainer's output folder, with its checkpoints.
        run: The folder with the ledger.
    """

    output: Path
    run: RunFolder

    @classmethod
    def of(cls, output_dir: str, folder: str | Path | None) -> TrainerFiles:
        """Return the files of a trainer."""
        output = Path(output_dir)
        return cls(output=output, run=RunFolder(Path(folder) if folder is not None else output / "privet"))

    def run_folder(self, private: PrivateRun) -> RunFolder:
        """Return the folder for the session: each round is charged alone, and checkpoints come with the trainer's."""
        return RunFolder(
            self.run.path,
            every=private.plan.num_steps + 1,
            reserve_ahead=1,
            assumptions=private.evaluation.assumptions,
        )

    def starting_point(self, resumed: Any, private: PrivateRun) -> Any:
        """Return the trainer's checkpoint to go on from, as the trainer names it; None where it has none.

        A run that was stopped before the first checkpoint of the trainer goes on from that of its session.

        Raises:
            LedgerError: a run was begun here and is not resumed, or the other way round; or its plan was another.
        """
        has_ledger = self.run.ledger_path.exists()
        if has_ledger and not resumed:
            raise LedgerError(
                f"{self.run.path} holds the ledger of a run. Go on with it: train(resume_from_checkpoint=True). A new "
                "run, whose cost adds to that of the old one, needs an output_dir of its own."
            )
        if resumed is True and not has_ledger and not self._steps():
            raise LedgerError(
                f"{self.output} holds no run to go on with: neither the ledger {self.run.ledger_path} nor a "
                "checkpoint. Leave resume_from_checkpoint out for a new run, or name the output_dir of the old one."
            )
        if resumed and not has_ledger:
            raise LedgerError(
                f"{self.run.path} holds no ledger, so what the checkpoint has cost is unknown. Bring the ledger back, "
                "or start a new run from weights that are public."
            )
        if resumed:  # before the trainer loads files of what may be another model
            self.run.open_ledger(private.plan, is_seeded=private.seed is not None).close()
        return None if resumed is True and not self._steps() else resumed

    def _steps(self) -> list[int]:
        """Return the steps of the trainer's checkpoints."""
        steps = (each.name.removeprefix("checkpoint-") for each in self.output.glob("checkpoint-*"))
        return [int(step) for step in steps if step.isdigit()]

    def keep(self, *, step: int) -> None:
        """Copy the run's newest checkpoint into the trainer's checkpoint of this step."""
        folder = self.output / f"checkpoint-{step}"
        if folder.is_dir():  # a trainer that keeps only the best may have removed it at once
            shutil.copyfile(self.run.checkpoint_path, folder / STATE_NAME)

    def bring(self, checkpoint: str | None) -> None:
        """Take the run's state from a checkpoint of the trainer; the session reads and compares it.

        Raises:
            CheckpointError: the checkpoint has none.
        """
        if checkpoint is None:
            return
        state = Path(checkpoint) / STATE_NAME
        if not state.is_file():
            raise CheckpointError(
                f"{checkpoint} has no {STATE_NAME}: it was not written by a private run. Resume from one that was."
            )
        shutil.copyfile(state, self.run.checkpoint_path)


def add_to_card(output: Path, guarantee: Guarantee) -> None:
    """Write the guarantee into the model card of a trainer, in the place of one that is there."""
    card = output / "README.md"
    if card.is_file():
        text = card.read_text(encoding="utf-8").split(f"\n{_HEADING}\n")[0].rstrip()
        card.write_text(f"{text}\n\n{_HEADING}\n\n{guarantee}\n", encoding="utf-8")
