"""What PyTorch does with functions (torch.func, tracing, profiling, second derivatives) and with tensors that carry more
than their values, beside PyTorch's own attention."""

import subprocess
import sys
import textwrap

import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402
import dfa.torch  # noqa: E402

sdpa = torch.nn.functional.scaled_dot_product_attention


def tensors(*shapes, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, **options) for shape in shapes]


def qkv(b=2, hq=4, hk=2, sq=7, sk=9, d=16, dv=8):
    return tensors((b, hq, sq, d), (b, hk, sk, d), (b, hk, sk, dv))


def theirs(q, k, v, **options):
    return sdpa(q, k, v, enable_gqa=True, **options)


def close(got, wanted, bound=2e-5):
    got, wanted = (x if isinstance(x, (tuple, list)) else [x] for x in (got, wanted))
    assert len(got) == len(wanted)
    for ours, right in zip(got, wanted):
        assert ours.shape == right.shape
        assert (ours - right).abs().max() <= bound * (1 + right.abs().max()) if right.numel() else True


def loss(attention):
    return lambda q, k, v: attention(q, k, v).square().sum()


def test_grad_vjp_and_jacrev():
    args = qkv()
    for transform in (lambda f: torch.func.grad(f, (0, 1, 2)), lambda f: lambda *x: torch.func.vjp(f, *x)[1](torch.tensor(2.0)),
                      lambda f: torch.func.jacrev(f, (0, 2))):
        close(transform(loss(dfa.attention))(*args), transform(loss(theirs))(*args))


@pytest.mark.parametrize("dims", [(0, 0, 0), (0, None, None), (None, 1, 0), (2, 0, None)])
def test_vmap_and_vmap_of_grad(dims):
    args = [x if dim is None else torch.stack([x, 2 * x, -x], dim) for dim, x in zip(dims, qkv())]
    for function in (lambda attention: attention, lambda attention: torch.func.grad(loss(attention), (0, 1, 2))):
        close(torch.vmap(function(dfa.attention), in_dims=dims)(*args), torch.vmap(function(theirs), in_dims=dims)(*args))


def test_gradients_of_weights_through_vmap():
    layer, x = torch.nn.Linear(16, 16), torch.randn(3, 2, 4, 9, 16)

    def weights(attention):
        layer.zero_grad()
        torch.vmap(lambda x: x + attention(*3 * [layer(x)]))(x).square().sum().backward()
        return layer.weight.grad.clone(), layer.bias.grad.clone()

    close(weights(dfa.attention), weights(sdpa))


def test_gradients_of_each_sample_and_functional_call():
    layer, x = torch.nn.Linear(16, 16), torch.randn(3, 4, 9, 16)
    parameters = dict(layer.named_parameters())

    def weights(attention):
        def of_one(parameters, x):
            y = torch.func.functional_call(layer, parameters, (x,))[None]
            return attention(y, y, y).square().sum()
        return list(torch.vmap(torch.func.grad(of_one), in_dims=(None, 0))(parameters, x).values())

    close(weights(dfa.attention), weights(sdpa))


@pytest.mark.parametrize("function", [
    lambda q, k, v: torch.func.jvp(lambda q: dfa.attention(q, k, v), (q,), (q,)),
    lambda q, k, v: torch.func.jacfwd(lambda q: dfa.attention(q, k, v))(q),
    lambda q, k, v: torch.func.hessian(lambda q: dfa.attention(q, k, v).sum())(q)])
def test_forward_mode_is_refused(function):
    with pytest.raises(RuntimeError, match="forward-mode derivatives.*accepted"):
        function(*qkv())
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError, match="forward-mode"):
        q, k, v = qkv()
        dfa.attention(torch.autograd.forward_ad.make_dual(q, q), k, v)


@pytest.mark.parametrize("inside", [False, True])
def test_second_derivatives_are_refused(inside):
    q, k, v = (x.requires_grad_() for x in qkv())
    if inside:
        with pytest.raises(RuntimeError, match="second derivative"):
            torch.func.grad(lambda q: torch.func.grad(loss(dfa.attention))(q, k, v).sum())(q)
        return
    o = dfa.attention(q, k, v)
    first, = torch.autograd.grad(o.sum(), q, create_graph=True)
    close(first.detach(), torch.autograd.grad(theirs(q, k, v).sum(), q)[0])
    with pytest.raises(RuntimeError, match="second derivative.*accepted"):
        torch.autograd.grad(first.sum(), k)


def loss_of_both(attention, weight=0.7):
    def loss(q, k, v):
        o, lse = attention(q, k, v)
        return weight * o.square().sum() + (lse * torch.linspace(-1, 1, lse.shape[-1])).sum()
    return loss


def theirs_with_lse(q, k, v):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


@pytest.mark.parametrize("weight", [0.7, 0])
@pytest.mark.parametrize("how", ["eager", "compiled", "func", "vmap"])
def test_the_gradient_of_lse(how, weight):
    args = [torch.randn(2, 3, 9, d) for d in (16, 16, 12)]

    def mine(q, k, v):
        return dfa.attention(q, k, v, return_lse=True)
    ours, right = loss_of_both(mine, weight), loss_of_both(theirs_with_lse, weight)
    if how == "func":
        return close(torch.func.grad(ours, (0, 1, 2))(*args), torch.func.grad(right, (0, 1, 2))(*args))
    if how == "vmap":
        args = [torch.stack([x, -x]) for x in args]
        return close(torch.vmap(torch.func.grad(ours, (0, 1, 2)))(*args), torch.vmap(torch.func.grad(right, (0, 1, 2)))(*args))
    if how == "compiled":
        ours = torch.compile(ours, backend="aot_eager", fullgraph=True)
    args = [x.requires_grad_() for x in args]
    close(torch.autograd.grad(ours(*args), args), torch.autograd.grad(right(*args), args, materialize_grads=True))


def test_the_gradient_of_lse_alone_of_rows_that_see_nothing_and_of_wide_values():
    q, k, v = (torch.randn(1, 1, n, 8, requires_grad=True) for n in (5, 3, 3))
    _, lse = dfa.attention(q, k, v, causal=True, return_lse=True)  # the first two rows see no key
    seen = lse[..., 2:]
    scores = (q @ k.mT / 8 ** 0.5)[..., 2:, :].masked_fill(~torch.ones(3, 3, dtype=torch.bool).tril(), -torch.inf)
    close(torch.autograd.grad(seen.sum(), (q, k)), torch.autograd.grad(scores.logsumexp(-1).sum(), (q, k)))
    wide = torch.randn(1, 1, 3, 512, requires_grad=True)
    _, lse = dfa.attention(wide, wide, wide, return_lse=True)
    with pytest.raises(ValueError, match="lse takes eight columns.*accepted: dv up to 504"):
        lse.sum().backward()


def test_trace_is_refused_and_the_process_lives():
    with pytest.raises(RuntimeError, match="torch.jit.trace cannot record.*accepted"):
        torch.jit.trace(lambda q: dfa.attention(q, q, q), qkv()[0], check_trace=False)


def test_flops_are_counted_as_pytorch_counts_its_own():
    from torch.utils.flop_counter import FlopCounterMode
    q, k, v = (x.requires_grad_() for x in qkv())
    with FlopCounterMode(display=False) as counter:
        dfa.attention(q, k, v, causal=True).sum().backward()
    b, h, sq, sk, d, dv = 2, 4, 7, 9, 16, 8
    assert counter.get_total_flops() == 2 * b * h * sq * sk * ((d + dv) + (d + dv + dv + d + d))


def test_the_profiler_sees_both_passes():
    q, k, v = (x.requires_grad_() for x in qkv())
    with torch.profiler.profile() as profile:
        dfa.attention(q, k, v).sum().backward()
    assert {"dfa::forward", "dfa::backward"} <= {event.key for event in profile.key_averages()}


def test_exported_programs_load_with_the_import_alone(tmp_path):
    class Model(torch.nn.Module):
        def forward(self, q, k, v):
            return dfa.attention(q, k, v, causal=True)

    args = qkv()
    torch.export.save(torch.export.export(Model(), tuple(args)), tmp_path / "model.pt2")
    torch.save(args, tmp_path / "args.pt")
    code = f"""
        import torch, dfa.torch
        args = torch.load({str(tmp_path / 'args.pt')!r})
        torch.save(torch.export.load({str(tmp_path / 'model.pt2')!r}).module()(*args), {str(tmp_path / 'o.pt')!r})"""
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
    close(torch.load(tmp_path / "o.pt"), dfa.attention(*args, causal=True))


@pytest.mark.parametrize("enabled", [True, False])
def test_autocast_as_pytorchs_own(enabled):
    q, k, v = qkv()
    for mixed in ((q, k, v), (q.bfloat16(), k, v)):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            if not enabled and mixed[0] is not q:
                with pytest.raises(ValueError, match="element types"):
                    dfa.attention(*mixed)
                continue
            ours, own = dfa.attention(*mixed), theirs(*mixed)
        assert ours.dtype == own.dtype
        close(ours.float(), own.float(), 2e-2 if enabled else 2e-5)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(ValueError, match="float64"):
        dfa.attention(q.double(), k.double(), v.double())


def test_the_number_of_threads_is_pytorchs():
    from dfa import _torch_calls
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            dfa.attention(*qkv())
            plan, _, _ = _torch_calls.prepare((-1, -1, 0.0, False, "auto"), torch.get_num_threads(), "fwd", *qkv())
            assert plan.threads == threads
    finally:
        torch.set_num_threads(before)


def test_deterministic_algorithms_are_asked_of_the_plan(monkeypatch):
    from dfa import _torch
    seen, call = [], _torch._call
    monkeypatch.setattr(_torch, "_call", lambda *key: seen.append(key) or call(*key))
    torch.use_deterministic_algorithms(True)
    try:
        dfa.attention(*qkv())
    finally:
        torch.use_deterministic_algorithms(False)
    assert seen[0][3] is True


# Arguments that carry more than their values.


def test_negative_bits_are_signs():
    q, k, v = tensors(*3 * [(2, 4, 7, 16)], dtype=torch.complex64)
    args = [x.conj().imag for x in (q, k, v)]
    assert all(x.is_neg() for x in args)
    copies = [x.resolve_neg().contiguous() for x in args]
    close(dfa.attention(*args), dfa.attention(*copies))
    copies = [x.requires_grad_() for x in copies]
    d_o = q.conj().imag
    close(torch.autograd.grad(dfa.attention(*copies), copies, d_o), torch.autograd.grad(theirs(*copies), copies, d_o.resolve_neg()))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("d, dv", [(5, 8), (8, 3), (1, 1), (17, 31), (80, 36)])
def test_head_dims_of_any_size(d, dv, compiled):
    q, k, v = (x.requires_grad_() for x in qkv(d=d, dv=dv))
    ours = torch.compile(dfa.attention, backend="aot_eager", fullgraph=True) if compiled else dfa.attention
    results = [(o, *torch.autograd.grad(o.square().sum(), (q, k, v))) for o in (ours(q, k, v), theirs(q, k, v))]
    close(*results)


def test_expanded_keys_and_a_batch_of_one():
    q, k, v = (x.requires_grad_() for x in (*tensors((3, 4, 7, 16)), *tensors((1, 2, 9, 16), (1, 1, 9, 16))))
    results = []
    for attention in (dfa.attention, theirs):
        for keys in (lambda k: k, lambda k: k.expand(3, -1, -1, -1)):
            o = attention(q, keys(k), v.expand(3, 2, 9, 16))
            results.append((o, *torch.autograd.grad(o.square().sum(), (q, k, v))))
    for result in results[:2]:
        close(result, results[2 if len(results) > 3 else 1])


@pytest.mark.parametrize("name, size", [("b", 0), ("sq", 0), ("sk", 0), ("dv", 0)])
def test_sizes_of_zero(name, size):
    q, k, v = (x.requires_grad_() for x in qkv(**{name: size}))
    o, lse = dfa.attention(q, k, v, return_lse=True)
    assert o.shape == (*q.shape[:3], v.shape[3]) and not o.any()
    assert lse.shape == q.shape[:3] and (name != "sk" or (lse == -torch.inf).all())
    for gradient, x in zip(torch.autograd.grad(o.sum(), (q, k, v)), (q, k, v)):
        assert gradient.shape == x.shape and not gradient.any()


def test_layouts_that_no_kernel_reads():
    q, k, v = qkv()
    turned = [x.transpose(2, 3).contiguous().transpose(2, 3) for x in (q, k, v)]
    flat = [torch.cat([torch.zeros(1), x.flatten()])[1:].view_as(x) for x in (q, k, v)]  # at an odd element
    for args in (turned, flat):
        args = [x.requires_grad_() for x in args]
        close(torch.autograd.grad(dfa.attention(*args).square().sum(), args), torch.autograd.grad(theirs(*args).square().sum(), args))


def test_what_is_refused_and_in_which_words():
    q, k, v = qkv()
    for words, args in [("float64", [x.double() for x in (q, k, v)]), ("complex64", [x.cfloat() for x in (q, k, v)]),
                        ("meta", [x.to("meta") for x in (q, k, v)]), ("sparse", [x.to_sparse() for x in (q, k, v)]),
                        ("q has 3 dimensions", [q[0], k, v]), ("shapes do not match", [q, k[..., :8], v]),
                        ("shapes do not match", [q, k[:, :, :3], v])]:
        with pytest.raises((ValueError, TypeError), match=words) as raised:
            dfa.attention(*args)
        assert "\n" not in str(raised.value)


def test_in_place_changes_of_what_the_backward_needs_are_seen():
    q, k, v = (x.requires_grad_() for x in qkv())
    keys = k * 1
    o = dfa.attention(q, keys, v)
    keys.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


def test_checkpoints_hooks_and_views_of_one_projection():
    x = torch.randn(2, 9, 3 * 4 * 16, requires_grad=True)

    def split(attention):
        q, k, v = x.view(2, 9, 3, 4, 16).permute(2, 0, 3, 1, 4)
        return attention(q, k, v).square().sum()

    wanted, = torch.autograd.grad(split(sdpa), x)
    again = torch.utils.checkpoint.checkpoint(lambda x: split(dfa.attention), x, use_reentrant=False)
    with torch.autograd.graph.save_on_cpu():
        kept = split(dfa.attention)
    for value in (split(dfa.attention), again, kept):
        close(torch.autograd.grad(value, x)[0], wanted)


def test_the_operators_keep_pytorchs_rules():
    q, k, v = (x.requires_grad_() for x in qkv())
    options = (-1, 0, 0.0, False, "auto")
    torch.library.opcheck(torch.ops.dfa.forward.default, (q, k, v, *options))
    o, lse = torch.ops.dfa.forward(q.detach(), k.detach(), v.detach(), *options)
    torch.library.opcheck(torch.ops.dfa.backward.default, (o, q.detach(), k.detach(), v.detach(), o, lse, *options))


@pytest.mark.parametrize("levels, transform", [
    (0, torch.func.grad), (1, lambda f: torch.vmap(torch.func.grad(f))),
    (1, lambda f: torch.func.grad(lambda x: torch.vmap(f)(x).sum())),
    (2, lambda f: torch.vmap(torch.vmap(torch.func.grad(f))))])
@pytest.mark.parametrize("kind", ["bool", "added", "padding"])
def test_masks_are_read_inside_transforms(levels, transform, kind):
    import dfa.torch
    mask = torch.ones(9, 9, dtype=torch.bool).tril()
    if kind == "added":
        mask = torch.zeros(9, 9).masked_fill(~mask, -torch.inf)
    elif kind == "padding":
        mask = torch.arange(9) < torch.tensor([9, 4])[:, None, None, None]
    sdpa = torch.nn.functional.scaled_dot_product_attention
    x = torch.randn(2, 4, 9, 16, generator=torch.Generator().manual_seed(8))
    x = torch.stack([x, 2 * x]).expand(*(2,) * (levels - 1), -1, -1, -1, -1, -1) if levels else x

    def gradients(function):
        return transform(lambda q: function(q, q, q, attn_mask=mask).square().sum())(x)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        wanted = gradients(sdpa)
    assert (gradients(dfa.torch.scaled_dot_product_attention) - wanted).abs().max() <= 2e-5 * (1 + wanted.abs().max())


@pytest.mark.parametrize("call, words", [
    (lambda q: torch.func.functionalize(lambda q: dfa.attention(q, q, q))(q), "functionalize.*accepted: torch.export"),
    (lambda q: torch.vmap(lambda w: dfa.attention(q, q, q, window=(w, 0)))(torch.tensor([1, 2])), "window .*accepted"),
    (lambda q: dfa.attention(q, q, q, window=(torch.tensor(1, device="meta"), 0)), "window .*accepted"),
    (lambda q: dfa.attention(q, q, q, scale=torch.tensor(1.0, device="meta")), "scale .*accepted"),
    (lambda q: dfa.attention(q, q, q, scale=torch.tensor([1.0]).to_sparse()), "scale .*sparse.*accepted")])
def test_what_has_no_value_or_no_rule_is_told_in_our_words(call, words):
    with pytest.raises((RuntimeError, ValueError), match=words) as raised:
        call(torch.randn(2, 4, 9, 16))
    assert "\n" not in str(raised.value)
