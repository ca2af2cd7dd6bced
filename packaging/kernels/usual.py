"""The problems whose kernels the package dfa-attention-kernels has: what is usual, as problem lines. Kernels are few, as many
problems share one; which they are is asked of the plans themselves (`dfa cache warm`)."""

import itertools

DTYPES = ("bf16", "fp16", "fp32")
HEAD_DIMS = (64, 80, 96, 128, 192, 256)
# Query heads and key heads: GPT-2, ViT and BERT; Llama 1 to 3 and what one of two or four cards has of them; Qwen, Phi, Gemma.
HEADS = ((12, 12), (16, 16), (32, 32), (40, 40), (32, 8), (64, 8), (16, 4), (8, 2), (28, 4), (16, 8))
BATCHES = (1, 2, 4, 8, 16, 32, 64)
DECODED = (*range(1, 17), 24, 32, 48, 64)  # as many sequences as come, one query each: keys are split by how many there are
LENGTHS = (64, 128, 197, 256, 512, 577, 1024, 2048, 4096, 8192, 16384, 32768)
KEYS = (*LENGTHS, 3000, 6000, 65536, 131072)
LAYOUTS = ("", "layout(bshd)")
TOKENS = 1 << 18  # of a call, at most; of a cache eight times as many

# Architectures, and multiprocessors of the cards that plans differ for: H100 SXM, H200 and GH200 have 132, an H100 PCIe 114.
CARDS = (("sm_80", 108), ("sm_86", 84), ("sm_89", 142), ("sm_90a", 132), ("sm_90a", 114))


def lines():
    """Prompts and gradients, then decoding, then packed sequences."""
    for dtype, d, (hq, hk), b, layout in itertools.product(DTYPES, HEAD_DIMS, HEADS, BATCHES, LAYOUTS):
        sizes = f"b{b} hq{hq} hk{hk}"
        for length in LENGTHS:
            if b * length > TOKENS:
                continue
            for mask in ("", "causal", f"window({min(4095, length // 2 - 1)},0)"):
                for what in ("fwd", "bwd", "fwdbwd"):
                    yield f"{what} {dtype} {mask} {sizes} s{length} d{d} {layout}"
                yield f"bwd {dtype} {mask} {sizes} s{length} d{d} deterministic {layout}"
    for dtype, d, (hq, hk), b, layout in itertools.product(DTYPES, HEAD_DIMS, HEADS, DECODED, LAYOUTS):
        for keys in KEYS:
            if b * keys <= 8 * TOKENS:
                yield f"fwd {dtype} b{b} hq{hq} hk{hk} sq1 sk{keys} d{d} {layout}"
    for dtype, d, (hq, hk) in itertools.product(("bf16", "fp16"), HEAD_DIMS, HEADS):
        for b, length in itertools.product(BATCHES, LENGTHS):
            if b * length <= TOKENS:
                for what, mask in itertools.product(("fwd", "bwd"), ("", "causal")):
                    yield f"{what} {dtype} {mask} b{b} hq{hq} hk{hk} s{length} d{d} packed({b * length},{b * length})"


if __name__ == "__main__":
    for line in lines():
        print(" ".join(line.split()))
