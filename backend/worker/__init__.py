"""What runs inside one rank of a fleet: `main` (entry point), `loop` (commands in, events out), `models` (what it drives).

The first folder that may import torch, and only inside functions that the native model needs.
"""
