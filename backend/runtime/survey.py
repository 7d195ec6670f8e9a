"""Tries every attention kernel here and prints one JSON object: name to "works" or the reason why not.

A program for `doctor`, whose own process never imports torch.
"""

from __future__ import annotations

import json
import sys

import torch

from backend.runtime.attention import survey

if __name__ == "__main__":
    on_gpu = torch.cuda.is_available()
    found = survey(torch.device("cuda" if on_gpu else "cpu"), torch.bfloat16 if on_gpu else torch.float32)
    sys.stdout.write(json.dumps(found) + "\n")
