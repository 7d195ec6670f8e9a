"""Prompts in the Context-IR format: what they say, and edits that leave everything else as it was written.

Read `tags` (names of references in a text), `timecode`, `model` (the parts of a prompt), `parse`, `instruction` (the
first line of a keyframe prompt), `edit` (shots, lines, sections), `templates`. Pure: text in, text out. It lives with
the page because only the page helps people write prompts; the model, and so the backend, takes any text. It must not
know Gradio, files or the backend's state, so that it can move the day something else needs it.
"""
