"""What has to be said before JAX and PyTorch are imported."""

import os

# JAX else takes three quarters of the card for itself, beside PyTorch and other processes.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Processors that JAX takes for several devices (test_jax_devices.py).
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"
