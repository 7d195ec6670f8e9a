"""Media in and out: `probe`, `images`, `videos`, `audio`, `prepare` (in), `sandbox` (where they run), `mp4` (out).

Files from users are hostile until decoded. Nothing here knows jobs, models or torch.
"""
