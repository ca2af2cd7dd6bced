"""A small server: pages, a scheduler, a model with its keys and values in pages. Run by examples/serve.py."""
