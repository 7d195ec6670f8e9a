"""Checkpoints on disk: `catalog` (what there is and what it holds), `nano` (the built-in tiny model).

The catalog reads JSON and file sizes only; building the tiny model needs torch and happens in a child process.
"""
