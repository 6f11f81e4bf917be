"""Templates of pages: every value is escaped, and a missing value is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet.errors import DependencyError

if TYPE_CHECKING:
    from jinja2 import Template


def load_template(name: str, *, package: str = "privet", folder: str = "reports/templates") -> Template:
    """Return a template of a package; its page is self-contained and has no scripts.

    Args:
        name: File name of the template.
        package: The package of the template. It may extend the templates of privet.
        folder: Folder of the template in that package.

    Raises:
        DependencyError: the packages that draw and write reports are not installed.
    """
    try:
        import jinja2
        import matplotlib  # noqa: F401 (only its presence matters here; plots are drawn elsewhere)
    except ImportError as error:
        raise DependencyError(
            f"A report needs jinja2 and matplotlib; {error.name} is missing. Install them with: "
            "pip install 'privet[report]'."
        ) from None
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.ChoiceLoader(
            [jinja2.PackageLoader(package, folder), jinja2.PackageLoader("privet", "reports/templates")]
        ),
    )
    return environment.get_template(name)
