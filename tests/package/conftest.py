"""What has to be said before JAX and PyTorch are imported."""

import os

# JAX else takes three quarters of the card for itself, beside PyTorch and other processes.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
