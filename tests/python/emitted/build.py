"""Builds the CUDA extension of an emitted file and loads it, in a process that has torch but not fusewright.

build.py MODEL_NEW.py: needs nvcc and a torch that is made for CUDA, but no GPU.
"""

import sys

import compare
import torch


def main(new_path):
    if torch.version.cuda is None:
        print(f"no CUDA in torch {torch.__version__}")
        return
    written = compare.load("written", new_path)
    extension = written._kernels()
    missing = [name for name, *_ in written._TABLE if not hasattr(extension, name)]
    assert not missing, f"the extension lacks {missing}"


if __name__ == "__main__":
    main(sys.argv[1])
