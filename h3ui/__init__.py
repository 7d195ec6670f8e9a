"""The page: `form` (panel values to a request), `render` (events to text), `panels/`, `page` (layout and wiring).

Imports gradio and `backend.api`; never torch, never an engine.
"""
