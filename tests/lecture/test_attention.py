from __future__ import annotations

import torch

from gptblock.lecture import Head, MultiHeadAttention


def test_shares_sum_to_1_and_the_future_has_none() -> None:
    head = Head(n_embd=32, head_size=8, block_size=16, dropout=0.0)
    for T in (1, 2, 16):
        shares = head.affinities(4 * torch.randn(3, T, 32))  # (B, T, T)
        assert shares.shape == (3, T, T)
        torch.testing.assert_close(shares.sum(-1), torch.ones(3, T))
        future = torch.ones(T, T, dtype=torch.bool).triu(1)
        assert (shares[:, future] == 0).all()
        assert (shares[:, ~future] > 0).all()


def test_scores_are_scaled_by_head_size_not_by_n_embd() -> None:
    head = Head(n_embd=32, head_size=8, block_size=16, dropout=0.0).double()
    x = 4 * torch.randn(3, 16, 32, dtype=torch.float64)
    scores = (x @ head.query.weight.T) @ (x @ head.key.weight.T).transpose(1, 2)
    hidden = torch.ones(16, 16, dtype=torch.bool).triu(1)

    def shares(scale: float) -> torch.Tensor:
        return (scores * scale).masked_fill(hidden, float("-inf")).softmax(-1)

    torch.testing.assert_close(head.affinities(x), shares(8**-0.5), atol=1e-12, rtol=0)
    assert (head.affinities(x) - shares(32**-0.5)).abs().max() > 0.05


def test_a_head_weighs_its_values_by_the_shares() -> None:
    head = Head(n_embd=32, head_size=8, block_size=16, dropout=0.0)
    x = torch.randn(3, 16, 32)
    torch.testing.assert_close(head(x), head.affinities(x) @ (x @ head.value.weight.T))


def test_the_mask_is_a_buffer_that_moves_is_saved_and_is_not_trained() -> None:
    head = Head(n_embd=32, head_size=8, block_size=16, dropout=0.0)
    assert [name for name, _ in head.named_buffers()] == ["tril"]
    assert torch.equal(head.state_dict()["tril"], torch.tril(torch.ones(16, 16)))
    assert not head.tril.requires_grad
    assert [name for name, _ in head.named_parameters()] == ["key.weight", "query.weight", "value.weight"]

    optimizer = torch.optim.AdamW(head.parameters(), lr=0.1, weight_decay=0.5)
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    assert id(head.tril) not in held
    head(torch.randn(3, 16, 32)).square().sum().backward()
    optimizer.step()
    assert torch.equal(head.tril, torch.tril(torch.ones(16, 16)))

    assert head.double().tril.dtype == torch.float64
    assert head.to("meta").tril.device.type == "meta"


def test_four_heads_of_8_cost_what_one_of_32_does() -> None:
    def parameters(n_head: int) -> int:
        layer = MultiHeadAttention(n_embd=32, n_head=n_head, block_size=16, dropout=0.0)
        assert len(layer.heads) == n_head
        assert layer.heads[0].key.weight.shape == (32 // n_head, 32)
        return sum(parameter.numel() for parameter in layer.parameters())

    assert parameters(4) == parameters(1) == 3 * 32 * 32 + 32 * 32 + 32


def test_heads_stand_side_by_side_before_the_projection() -> None:
    layer = MultiHeadAttention(n_embd=32, n_head=4, block_size=16, dropout=0.0)
    x = torch.randn(3, 16, 32)
    side_by_side = torch.cat([head(x) for head in layer.heads], dim=-1)
    torch.testing.assert_close(layer(x), side_by_side @ layer.proj.weight.T + layer.proj.bias)


def test_moves_from_past_to_future_only_and_never_between_rows() -> None:
    layer = MultiHeadAttention(n_embd=32, n_head=4, block_size=16, dropout=0.0)
    x = torch.randn(3, 16, 32)
    for t in range(16):
        changed = x.clone()
        changed[1, t] += torch.randn(32)
        moved = (layer(x) != layer(changed)).any(-1)  # (B, T)
        assert moved.nonzero().tolist() == [[1, later] for later in range(t, 16)]


def test_drops_shares_in_training_alone() -> None:
    head = Head(n_embd=32, head_size=32, block_size=16, dropout=0.5)
    x = torch.randn(1, 16, 32)
    with torch.no_grad():
        head.value.weight.copy_(torch.eye(32))
    x[0, :, :16] = torch.eye(16)  # so that the first 16 features of the output are the shares
    whole = head.eval()(x)[0, :, :16]
    dropped = head.train()(x)[0, :, :16]
    kept = dropped != 0
    torch.testing.assert_close(whole, head.affinities(x)[0])
    torch.testing.assert_close(dropped, torch.where(kept, 2 * whole, 0.0))
    assert 0.3 < kept[torch.ones(16, 16, dtype=torch.bool).tril()].float().mean() < 0.7
