"""What runs inside one rank: `main` (entry point), `loop` (commands in, events out), `report`, `models`.

The first folder that may import torch, and only inside functions that the native model needs.
"""
