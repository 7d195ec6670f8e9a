"""Child processes that cannot be orphaned, in reading order: `messages`, `channel` (JSON lines), `child` (one process),
`logs`, `runs` (short-lived files), `watch` (who is hung), `verdict` (who is to blame), `spec`, `fleet` (N as one).

Nothing here knows what the children compute.
"""
