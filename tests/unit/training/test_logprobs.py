import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from parity.training import logprobs as module
from parity.training.logprobs import logits_logprobs, token_logprobs


def tensors(num_tokens, hidden_size, vocabulary, *, seed=0, scale=1.0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_tokens, hidden_size, generator=generator, dtype=dtype) * scale
    weight = torch.randn(vocabulary, hidden_size, generator=generator, dtype=dtype)
    targets = torch.randint(vocabulary, (num_tokens,), generator=generator)
    return hidden.requires_grad_(), weight.requires_grad_(), targets


def by_the_book(hidden, weight, targets, temperature):
    everything = (hidden @ weight.T / temperature).log_softmax(-1)
    return everything.gather(1, targets[:, None])[:, 0], -(everything.exp() * everything).sum(-1)


def outcome(function, hidden, weight, of_logprob, of_entropy):
    logprobs, entropy = function()
    loss = (logprobs * of_logprob).sum()
    if of_entropy is not None:
        loss = loss + (entropy * of_entropy).sum()
    return [logprobs, entropy, *torch.autograd.grad(loss, (hidden, weight))]


@settings(max_examples=50, deadline=None)
@given(
    num_tokens=st.integers(1, 9),
    vocabulary=st.integers(2, 23),
    chunk=st.integers(1, 30),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    held=st.sampled_from([1, 20, 10**6]),
    needs_entropy=st.booleans(),
    scale=st.sampled_from([0.1, 1.0, 40.0]),
)
def test_values_and_gradients_are_those_of_log_softmax(
    num_tokens, vocabulary, chunk, temperature, held, needs_entropy, scale
):
    hidden, weight, targets = tensors(num_tokens, 5, vocabulary, scale=scale)
    of_logprob = torch.linspace(-1.0, 2.0, num_tokens, dtype=torch.float64)
    of_entropy = of_logprob.flip(0) + 0.5 if needs_entropy else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "HELD_LOGITS", held)
        ours = outcome(
            lambda: token_logprobs(
                hidden,
                weight,
                targets,
                temperature=temperature,
                chunk=chunk,
                needs_entropy_gradient=needs_entropy,
            ),
            hidden,
            weight,
            of_logprob,
            of_entropy,
        )
    book = outcome(
        lambda: by_the_book(hidden, weight, targets, temperature),
        hidden,
        weight,
        of_logprob,
        of_entropy,
    )
    for found, expected in zip(ours, book, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-9)


def test_gradcheck_of_both_outputs():
    hidden, weight, targets = tensors(4, 3, 7)

    def both(hidden, weight):
        return token_logprobs(
            hidden, weight, targets, temperature=0.8, chunk=3, needs_entropy_gradient=True
        )

    assert torch.autograd.gradcheck(both, (hidden, weight))


def test_entropy_has_no_gradient_unless_asked():
    hidden, weight, targets = tensors(4, 3, 7)
    _, entropy = token_logprobs(hidden, weight, targets, temperature=1.0, chunk=3)
    assert not entropy.requires_grad
    _, entropy = logits_logprobs(hidden @ weight.T, targets, temperature=1.0)
    assert not entropy.requires_grad


def test_large_logits_stay_finite_in_float32():
    hidden, weight, targets = tensors(6, 8, 50, scale=1e4, dtype=torch.float32)
    logprobs, entropy = token_logprobs(hidden, weight, targets, temperature=1.0, chunk=7)
    logprobs.sum().backward()
    assert logprobs.isfinite().all()
    assert entropy.isfinite().all()
    assert hidden.grad.isfinite().all()
    assert weight.grad.isfinite().all()


def test_no_tensor_of_all_logits_is_made_when_the_vocabulary_is_larger_than_a_chunk():
    hidden, weight, targets = tensors(16, 4, 1000, dtype=torch.float32)
    sizes = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if isinstance(result, torch.Tensor):
                sizes.append(result.numel())
            return result

    with Watch():
        logprobs, _ = token_logprobs(hidden, weight, targets, temperature=1.0, chunk=50)
        logprobs.sum().backward()
    assert max(sizes) == weight.numel()  # the weight and its gradient
    assert sizes.count(16 * 1000) == 0


def test_bfloat16_products_give_float32_results_and_gradients_of_each_dtype():
    hidden, weight, targets = tensors(12, 16, 40, dtype=torch.float32)
    low = hidden.detach().to(torch.bfloat16).requires_grad_()
    logprobs, _ = token_logprobs(low, weight, targets, temperature=1.0, chunk=9)
    expected, _ = by_the_book(hidden, weight, targets, 1.0)
    assert logprobs.dtype == torch.float32
    torch.testing.assert_close(logprobs, expected, rtol=0.02, atol=0.1)
    logprobs.sum().backward()
    assert low.grad.dtype == torch.bfloat16
    assert weight.grad.dtype == torch.float32


def test_logits_path_equals_the_head_path():
    hidden, weight, targets = tensors(6, 4, 11)
    ours = token_logprobs(hidden, weight, targets, temperature=0.6, chunk=4)
    own = logits_logprobs(hidden @ weight.T, targets, temperature=0.6)
    torch.testing.assert_close(own, ours)


def test_nan_hidden_states_come_out_as_nan():
    hidden, weight, targets = tensors(3, 4, 11)
    with torch.no_grad():
        hidden[1] = torch.nan
    logprobs, _ = token_logprobs(hidden, weight, targets, temperature=1.0, chunk=4)
    assert logprobs.isnan().tolist() == [False, True, False]
