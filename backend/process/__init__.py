"""Child processes that cannot be orphaned: `channel` (JSON lines), `messages`, `child` (one process), `fleet` (N as one).

Nothing here knows what the children compute.
"""
