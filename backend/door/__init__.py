"""The parts of the door, one topic each; `backend.api` puts them together, and nobody else imports them.

Read in this order: `house` (what all stand on), `standing`, `asking`, `jobs`, `queue`, `models`. A new question goes
into the module of its topic, with an `owner` wherever it is about jobs.
"""
