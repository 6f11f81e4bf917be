"""``privet allow``: consent to run a Python file that a recipe names."""

from __future__ import annotations

import click

from privet.cli import console


@console.command("privet allow mine.py:build")
@click.argument("reference")
def allow(reference: str) -> int:
    """Agree that recipes may run the function REFERENCE, file.py:function.

    A recipe or run from somebody else may name a Python file as its network,
    and such code can do all that you can. It is run only if you agreed, here or
    by privet train --model. The consent is for this file at this place as it is
    now; it is kept in your state folder. Nothing is run by this command.
    """
    from privet.runs.consent import Code

    code = Code.read(reference)
    code.allow()
    console.show_facts({"allowed": f"{code.path}:{code.function}", "sha256": code.sha256})
    return console.OK
