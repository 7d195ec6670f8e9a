"""HOW the model runs: attention kernels, AdaLN tables, compiled blocks, tiled decode, residency.

Wraps modules of diffusers; never decides what is computed and never sees a job.
"""
