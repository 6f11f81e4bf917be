"""From a template and values to a page: everything that comes from a file is escaped, what is missing is an error."""

from __future__ import annotations

from typing import TYPE_CHECKING

from privet.errors import DependencyError

if TYPE_CHECKING:
    from jinja2 import Template


def load_template(name: str) -> Template:
    """Return a template of the package; what it renders loads nothing and runs nothing.

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
        loader=jinja2.PackageLoader("privet", "reports/templates"),
    )
    return environment.get_template(name)
