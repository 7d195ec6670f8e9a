"""HTTP routes beside the page, on the same jobs. Knows `backend.api` and nothing below it."""
