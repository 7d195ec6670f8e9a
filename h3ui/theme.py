"""Colours, type and spacing of the page as one Gradio theme; fonts are the system's own.

It knows how things look; layout details are in `assets/styles`, what the page does by itself in `assets/scripts`.
"""

from __future__ import annotations

from pathlib import Path

import gradio as gr
from gradio.themes.utils import colors, sizes

from h3ui.markup import ASSETS_DIR

SANS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "Noto Sans", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "Noto Sans Mono", "monospace")

IRIS = colors.Color(
    name="iris",
    c50="#f3f1ff",
    c100="#e9e5ff",
    c200="#d5cdff",
    c300="#b7a8ff",
    c400="#957bfc",
    c500="#7655f0",
    c600="#6640e0",
    c700="#5530bf",
    c800="#46299b",
    c900="#3a247d",
    c950="#22124f",
)


def studio() -> gr.themes.Base:
    """The theme of the studio, light and dark."""
    theme = gr.themes.Base(
        primary_hue=IRIS,
        secondary_hue=IRIS,
        neutral_hue=colors.zinc,
        radius_size=sizes.radius_lg,
        spacing_size=sizes.spacing_md,
        text_size=sizes.text_md,
        font=SANS,
        font_mono=MONO,
    )
    return theme.set(
        body_background_fill="#f6f5f8",
        body_background_fill_dark="#0d0c12",
        body_text_color="#1d1b26",
        body_text_color_dark="#eceaf4",
        body_text_color_subdued="#625e70",
        body_text_color_subdued_dark="#a29db3",
        background_fill_primary="#ffffff",
        background_fill_primary_dark="#17151f",
        background_fill_secondary="#faf9fc",
        background_fill_secondary_dark="#1d1b26",
        border_color_primary="#e4e1ea",
        border_color_primary_dark="#2c2938",
        block_background_fill="transparent",
        block_background_fill_dark="transparent",
        block_border_width="0px",
        block_border_width_dark="0px",
        block_padding="0px",
        block_shadow="none",
        block_shadow_dark="none",
        block_label_background_fill="transparent",
        block_label_background_fill_dark="transparent",
        block_label_border_width="0px",
        block_title_text_color="#1d1b26",
        block_title_text_color_dark="#eceaf4",
        block_title_text_weight="600",
        block_title_text_size="0.875rem",
        block_title_background_fill="transparent",
        block_title_padding="0px",
        layout_gap="16px",
        input_background_fill="#ffffff",
        input_background_fill_dark="#110f18",
        input_border_color="#d4d0dd",
        input_border_color_dark="#373345",
        input_border_color_focus="#7655f0",
        input_border_color_focus_dark="#957bfc",
        input_border_width="1px",
        input_shadow="none",
        input_shadow_focus="0 0 0 3px rgba(118,85,240,.22)",
        input_shadow_focus_dark="0 0 0 3px rgba(149,123,252,.28)",
        input_placeholder_color="#767183",
        input_placeholder_color_dark="#8b869b",
        slider_color="#7655f0",
        slider_color_dark="#957bfc",
        button_primary_background_fill="#6640e0",
        button_primary_background_fill_hover="#5530bf",
        button_primary_background_fill_dark="#7655f0",
        button_primary_background_fill_hover_dark="#8667f7",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#ffffff",
        button_secondary_background_fill="#ffffff",
        button_secondary_background_fill_hover="#f3f1f7",
        button_secondary_background_fill_dark="#221f2c",
        button_secondary_background_fill_hover_dark="#2c2938",
        button_secondary_border_color="#d9d5e2",
        button_secondary_border_color_dark="#373345",
        button_secondary_text_color="#1d1b26",
        button_secondary_text_color_dark="#eceaf4",
        button_large_radius="12px",
        button_small_radius="9px",
    )


def styles() -> list[Path]:
    """The style sheets, the common one first, then one a theme."""
    found = sorted((ASSETS_DIR / "styles").glob("*.css"), key=lambda path: (path.stem != "studio", path.stem))
    return [path for path in found if path.stem != "login"]


def login_page() -> str:
    """Name and looks of the login page: before somebody logs in Gradio sends nothing else of ours, and this as HTML."""
    style = (ASSETS_DIR / "styles" / "login.css").read_text(encoding="utf-8")
    return f"H3 Studio<style>{style}</style>"


def script() -> str:
    """What every page runs: each file of `assets/scripts`, the common one first."""
    found = sorted((ASSETS_DIR / "scripts").glob("*.js"), key=lambda path: (path.stem != "studio", path.stem))
    return "\n".join(path.read_text(encoding="utf-8") for path in found)
