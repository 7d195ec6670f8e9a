"""What this machine has: `probe` (GPUs by NVML, RAM, disk) and `forecast` (what a request costs on it).

Nothing here creates a CUDA context or imports torch.
"""
