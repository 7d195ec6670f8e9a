"""HTTP routes beside the page: `guards`, `files`, `health`, `forms` and `videos`, mounted by `routes`.

Knows `backend.api` and nothing below it.
"""
