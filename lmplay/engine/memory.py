"""When memory runs out: telling that from other errors, and giving back what is held in reserve.  Engine floor: imports torch only."""
from __future__ import annotations

import gc

import torch

# How errors of torch that are plain RuntimeErrors say it: the CPU's allocator (on Linux, on Windows), Apple's GPUs, and cuBLAS for its workspace.
_SIGNS = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an error says that memory has run out, on the device or beside it."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _SIGNS)


def free_memory(device: torch.device) -> None:
    """Give back what nobody uses any more; to be called outside of the `except` that holds the error, and with it the tensors of its frames.

    :param device: whose allocator keeps memory in reserve.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()
