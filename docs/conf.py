"""How Sphinx builds these pages: Markdown by MyST, the theme furo, nothing from the network."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE / "extensions"), str(HERE.parent / "src")]

from privet import __version__  # noqa: E402

project = "privet"
author = "The privet developers"
project_copyright = author
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    # in docs/extensions
    "help_pages",
    "measured",
    "optional_pages",
    "public_names",
    "still_formulas",
]
exclude_patterns = ["extensions"]
source_suffix = {".md": "markdown"}
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
autodoc_preserve_defaults = True
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Guarantee", "notes_style"), ("Edge cases", "notes_style")]

html_theme = "furo"
html_title = f"privet {release}"
html_show_sourcelink = False
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["privet.css"]
# Formulas become MathML, which browsers draw themselves: no script, no download.
html_math_renderer = "mathml"
pygments_style = "friendly"
pygments_dark_style = "monokai"
