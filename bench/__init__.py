"""Repeatable measurements, each with its peer beside it: `step`, `decode`, `end_to_end`, `quality`; inputs in `models`.

Run as `python -m bench.step`; `--tiny` runs anywhere. Results are written to `bench/results/`.
"""
