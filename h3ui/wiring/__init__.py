"""Which event of which component calls which handler, one module a part of the page.

Each has one function `wire`, called once by `h3ui.page`; none holds state.
"""

from __future__ import annotations

from typing import Any

QUIET: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
