"""dfa cache warm --model: the kernels that a model's calls would run."""
import json

import pytest

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "num_attention_heads": 4,
         "num_key_value_heads": 2, "max_position_embeddings": 128, "torch_dtype": "bfloat16"}


@pytest.fixture
def warm(dfa, tmp_path):
    """Runs `dfa cache warm --model` of this configuration for sm_80; skips where nothing can be compiled."""
    def run(config, *arguments):
        path = tmp_path / "config.json"
        path.write_text(config if isinstance(config, str) else json.dumps(config))
        done = dfa("cache", "warm", "--sm", "80", "--model", str(path), *arguments,
                   env={"DFA_CACHE_DIR": str(tmp_path / "cache"), "DFA_KERNELS": "none"})
        for reason in ("this build has no CUDA", "no CUDA run-time compiler"):
            if reason in done.stderr:
                pytest.skip(done.stderr)
        return done
    return run


def compiled(done):
    assert (done.returncode, done.stderr) == (0, "")
    return [kernel["kernel"] for kernel in json.loads(done.stdout)["kernels"]]


def test_it_compiles_what_its_prompts_and_decoding_run(warm, dfa, tmp_path):
    made = compiled(warm(LLAMA, "--json"))
    assert made and all(".element=dfa::DType::bf16,.head_dim=64" in kernel for kernel in made)
    for line in ("fwd bf16 causal b3 hq4 hk2 s100 d64 layout(bshd)", "fwd bf16 b8 hq4 hk2 sq1 sk128 d64"):
        done = dfa("cache", "warm", "--arch", "sm_80", "--problem", line,
                   env={"DFA_CACHE_DIR": str(tmp_path / "cache"), "DFA_NVRTC": "/none", "DFA_KERNELS": "none"})
        assert done.returncode == 0, done.stderr


def test_it_says_what_it_did(warm):
    text = warm(LLAMA, "--batch", "1-2", "--length", "64,128").stdout
    assert text.startswith("llama: 4 query heads, 2 key heads, d 64, causal, fwd bf16, batches 1-2, lengths 64,128: 16 problems, ")
    assert text.splitlines()[-1].startswith("1 kernels for sm_80 in ") and ": 1 compiled; the cache is " in text


def test_gradients_and_another_dtype_are_asked_for(warm):
    made = compiled(warm(LLAMA, "--pass", "bwd", "--dtype", "fp16", "--length", "128", "--batch", "1", "--json"))
    assert any("sm80_backward_keys" in kernel for kernel in made) and not any("forward" in kernel for kernel in made)
    assert all("fp16" in kernel for kernel in made)


MISTRAL = LLAMA | {"model_type": "mistral", "sliding_window": 32}
TEXTS = [
    (MISTRAL, "mistral: 4 query heads, 2 key heads, d 64, causal, windows of 32"),
    (MISTRAL | {"use_sliding_window": False}, "mistral: 4 query heads, 2 key heads, d 64, causal, fwd"),
    (MISTRAL | {"layer_types": ["full_attention"]}, "mistral: 4 query heads, 2 key heads, d 64, causal, fwd"),
    (LLAMA | {"head_dim": 96, "attn_logit_softcapping": 50.0}, "llama: 4 query heads, 2 key heads, d 96, causal, softcap 50"),
    ({"model_type": "gpt2", "n_head": 12, "n_embd": 768, "n_positions": 64, "dtype": "float16"},
     "gpt2: 12 query heads, 12 key heads, d 64, causal, fwd fp16, batches 1, lengths 64-64"),
    ({"architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_size": 128, "num_attention_heads": 2, "dtype": "float32"},
     "bert: 2 query heads, 2 key heads, d 64, full, fwd fp32"),
    ({"architectures": ["X"], "text_config": LLAMA, "vision_config": {"hidden_size": 1}}, "llama: 4 query heads"),
    (LLAMA | {"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
     "llama: 4 query heads, 4 key heads, d 192, dv 128, causal"),
    (LLAMA | {"model_type": "gpt_oss"}, "gpt_oss: 4 query heads, 2 key heads, d 64, causal, sinks"),
]


@pytest.mark.parametrize("config, text", TEXTS, ids=[text for _, text in TEXTS])
def test_names_and_masks_of_models_are_read(warm, config, text):
    done = warm(config, "--batch", "1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(text)


@pytest.mark.parametrize("config, arguments, named", [
    ({"hidden_size": 8}, (), "num_attention_heads is missing"),
    ({"num_attention_heads": 4}, (), "head_dim and hidden_size are missing"),
    (LLAMA | {"num_attention_heads": "four"}, (), 'num_attention_heads is "four"; accepted'),
    (LLAMA | {"torch_dtype": "int8"}, (), "dtype is 'int8'; accepted: bfloat16"),
    ({k: v for k, v in LLAMA.items() if k != "torch_dtype"}, (), "accepted: --dtype"),
    (LLAMA | {"num_key_value_heads": 3}, (), "3"),
    ("[]", (), "accepted is the config.json of a model"),
    ("{", (), "config.json"),
    (LLAMA, ("--batch", "0"), "--batch '0'; accepted"),
    (LLAMA, ("--length", "8-4"), "--length '8-4'; accepted"),
    (LLAMA, ("--length", "64,"), "--length ''; accepted"),
    (LLAMA, ("--dtype", "fp8"), "--dtype 'fp8'; accepted: bf16, fp16, fp32"),
    (LLAMA, ("--pass", "all"), "--pass 'all'; accepted: bwd, fwd, fwdbwd"),
])
def test_what_is_no_model_is_refused_in_one_line(warm, config, arguments, named):
    done = warm(config, *arguments)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and named in done.stderr, done.stderr


def test_a_missing_file_and_options_without_a_model_are_refused(dfa):
    done = dfa("cache", "warm", "--sm", "80", "--model", "/not/there.json")
    assert done.returncode in (2, 3) and done.stderr.count("\n") == 1
    done = dfa("cache", "warm", "--sm", "80", "--problem", "fwd h1 s8 d16", "--batch", "2")
    assert done.returncode == 2 and "--batch requires --model" in done.stderr
