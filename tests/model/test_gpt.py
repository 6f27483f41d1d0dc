from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gptblock.config import ModelConfig, Overflow, SamplingConfig
from gptblock.errors import ConfigError, GptblockError, InputError
from gptblock.model import GPT, count_parameters, eval_mode, loss
from gptblock.sampling import sample

GREEDY = SamplingConfig(temperature=0)


@pytest.fixture
def model(tiny: ModelConfig) -> GPT:
    return GPT(tiny).eval()


def ids(B: int, T: int) -> Tensor:
    return torch.randint(65, (B, T))


class TestForward:
    @pytest.mark.parametrize("T", [1, 2, 15, 16])
    @pytest.mark.parametrize("B", [1, 3])
    def test_shape(self, model: GPT, B: int, T: int) -> None:
        assert model(ids(B, T)).shape == (B, T, 65)

    @pytest.mark.parametrize("shape", [{}, {"block_size": 1}, {"n_head": 32}, {"n_layer": 1, "n_head": 1}])
    def test_the_smallest_shapes_work(self, tiny: ModelConfig, shape: Mapping[str, int]) -> None:
        config = tiny.replace(**shape)
        logits = GPT(config)(ids(2, config.block_size))
        assert logits.shape == (2, config.block_size, 65)
        assert logits.isfinite().all()

    def test_longer_than_block_size_is_one_clear_error(self, model: GPT) -> None:
        with pytest.raises(
            InputError, match=r"^the input is 17 tokens long .* block_size = 16: pass the last 16"
        ):
            model(ids(1, 17))

    def test_logits_see_the_past_and_never_the_future_or_another_row(self, model: GPT) -> None:
        input_ids = ids(3, 16)
        logits = model(input_ids)
        for t in range(16):
            changed = input_ids.clone()
            changed[1, t] = (changed[1, t] + 1) % 65
            moved = (model(changed) != logits).any(-1)  # (B, T)
            assert moved.nonzero().tolist() == [[1, later] for later in range(t, 16)]

    def test_the_same_token_twice_differs_by_its_position(self, tiny: ModelConfig) -> None:
        model = GPT(tiny)
        same = torch.full((1, 16), 5)
        with torch.no_grad():
            apart = model(same)
            model.position_embedding.weight[:] = model.position_embedding.weight[0].clone()
            alike = model(same)
        assert (apart[0, 0] - apart[0, 1]).abs().max() > 0.01
        torch.testing.assert_close(alike[0, 0], alike[0, 1])

    def test_dropout_is_off_in_evaluation(self, tiny: ModelConfig, model: GPT) -> None:
        dropping = GPT(tiny.replace(dropout=0.5))
        dropping.load_state_dict(model.state_dict())
        input_ids = ids(2, 16)
        assert (dropping(input_ids) - model(input_ids)).abs().max() > 0.1
        assert torch.equal(dropping.eval()(input_ids), model(input_ids))


class TestConfiguration:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"n_embd": 30}, "n_embd = 30 and n_head = 4"),
            ({"n_head": 0}, "n_head must be >= 1: got 0"),
            ({"n_head": -4}, "n_head must be >= 1: got -4"),
            ({"n_layer": 0}, "n_layer must be >= 1: got 0"),
            ({"n_embd": 0}, "n_embd must be >= 1: got 0"),
            ({"block_size": 0}, "block_size must be >= 1: got 0"),
            ({"vocab_size": 0}, "vocab_size must be >= 1: got 0"),
            ({"dropout": 1.0}, r"dropout must be in \[0, 1\): got 1.0"),
            ({"dropout": -0.1}, r"dropout must be in \[0, 1\): got -0.1"),
        ],
    )
    def test_refusals(self, tiny: ModelConfig, fields: Mapping[str, float], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            GPT(tiny.replace(**fields))

    def test_every_tensor_by_name_and_shape(self, tiny: ModelConfig) -> None:
        state = GPT(tiny.replace(n_layer=1)).state_dict()
        assert {name: tuple(tensor.shape) for name, tensor in state.items()} == {
            "token_embedding.weight": (65, 32),
            "position_embedding.weight": (16, 32),
            "blocks.0.ln1.weight": (32,),
            "blocks.0.ln1.bias": (32,),
            "blocks.0.attention.qkv.weight": (96, 32),
            "blocks.0.attention.proj.weight": (32, 32),
            "blocks.0.attention.proj.bias": (32,),
            "blocks.0.ln2.weight": (32,),
            "blocks.0.ln2.bias": (32,),
            "blocks.0.feedforward.up.weight": (128, 32),
            "blocks.0.feedforward.up.bias": (128,),
            "blocks.0.feedforward.down.weight": (32, 128),
            "blocks.0.feedforward.down.bias": (32,),
            "ln_f.weight": (32,),
            "ln_f.bias": (32,),
            "lm_head.weight": (65, 32),
            "lm_head.bias": (65,),
        }

    def test_head_and_embedding_are_two_matrices(self, model: GPT) -> None:
        assert model.lm_head.weight.data_ptr() != model.token_embedding.weight.data_ptr()
        assert count_parameters(model) == sum(tensor.numel() for tensor in model.state_dict().values())

    def test_count_leaves_out_what_is_frozen(self, model: GPT) -> None:
        before = count_parameters(model)
        model.lm_head.weight.requires_grad_(False)
        assert before - count_parameters(model) == 65 * 32


class TestInit:
    def stds(self, model: GPT) -> dict[str, float]:
        """Of all matrices by name; those of one name in all blocks are taken together."""
        together: defaultdict[str, list[Tensor]] = defaultdict(list)
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                together[re.sub(r"blocks\.\d+\.", "", name)].append(parameter)
        return {name: torch.cat(parts).std().item() for name, parts in together.items()}

    @pytest.mark.parametrize(("init", "residual"), [("gpt2", 0.02 / math.sqrt(2 * 8)), ("normal", 0.02)])
    def test_standard_deviations_and_zero_biases(self, init: str, residual: float) -> None:
        model = GPT(ModelConfig(vocab_size=400, block_size=200, n_layer=8, n_head=4, n_embd=64, init=init))
        for name, std in self.stds(model).items():
            expected = residual if name in ("attention.proj.weight", "feedforward.down.weight") else 0.02
            assert std == pytest.approx(expected, rel=0.05), name
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                assert (parameter == 0).all(), name
            elif parameter.dim() == 1:
                assert (parameter == 1).all(), name

    def test_torch_leaves_what_torch_draws(self, tiny: ModelConfig) -> None:
        torch.manual_seed(7)
        model = GPT(tiny)
        torch.manual_seed(7)
        assert torch.equal(model.token_embedding.weight, nn.Embedding(65, 32).weight)
        assert (model.lm_head.bias != 0).any()

    def test_same_seed_same_weights(self, tiny: ModelConfig) -> None:
        states = []
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            states.append(GPT(tiny.replace(init="gpt2")).token_embedding.weight)
        assert torch.equal(states[0], states[1])
        assert not torch.equal(states[0], states[2])

    def test_an_untrained_model_is_as_unsure_as_can_be(self, tiny: ModelConfig) -> None:
        model = GPT(tiny.replace(init="gpt2"))
        assert loss(model(ids(8, 16)), ids(8, 16)).item() == pytest.approx(math.log(65), abs=0.05)


def test_loss_is_the_mean_negative_log_likelihood() -> None:
    logits, targets = torch.randn(2, 3, 65), ids(2, 3)
    by_hand = [-math.log(logits[b, t].softmax(-1)[targets[b, t]].item()) for b in range(2) for t in range(3)]
    assert loss(logits, targets).item() == pytest.approx(sum(by_hand) / 6, rel=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_eval_mode_gives_every_submodule_its_mode_back(tiny: ModelConfig, training: bool) -> None:
    model = GPT(tiny).train(training)
    model.blocks[0].train(not training)
    modes = [module.training for module in model.modules()]
    assert len(set(modes)) == 2
    inside = []

    def fail() -> None:
        with eval_mode(model):
            inside.extend(module.training for module in model.modules())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert inside == [False] * len(modes)
    assert [module.training for module in model.modules()] == modes


def contexts(prompt: int, new: int, block_size: int, overflow: Overflow) -> list[tuple[int, int]]:
    """The rule of `generate` in another form: from which token to which each context reaches."""
    spans = []
    start = max(0, prompt - block_size)
    for end in range(prompt, prompt + new):
        if overflow == "stop" and end > block_size:
            break
        if overflow == "slide":
            start = max(0, end - block_size)
        elif end - start > block_size:
            start = end - max(1, block_size // 2)
        spans.append((start, end))
    return spans


class TestGenerate:
    def test_rebase_by_example(self) -> None:
        """So that the rule below is itself pinned: block_size 4, prompt of 3, seven tokens."""
        assert contexts(3, 7, 4, "rebase") == [(0, 3), (0, 4), (3, 5), (3, 6), (3, 7), (6, 8), (6, 9)]
        assert contexts(6, 3, 4, "rebase") == [(2, 6), (5, 7), (5, 8)]
        assert contexts(3, 4, 4, "slide") == [(0, 3), (0, 4), (1, 5), (2, 6)]
        assert contexts(3, 4, 4, "stop") == [(0, 3), (0, 4)]

    @pytest.mark.parametrize("overflow", ["slide", "rebase", "stop"])
    @pytest.mark.parametrize("block_size", [1, 2, 5, 16])
    @pytest.mark.parametrize("prompt", [1, 4, 5, 6, 16, 17, 40])
    def test_what_the_model_sees_at_each_token(
        self, tiny: ModelConfig, overflow: Overflow, block_size: int, prompt: int
    ) -> None:
        model = GPT(tiny.replace(block_size=block_size))
        seen: list[Tensor] = []
        model.token_embedding.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        tokens = model.generate(ids(2, prompt), 40, SamplingConfig(), seed=3, overflow=overflow)
        expected = contexts(prompt, 40, block_size, overflow)
        assert tokens.shape == (2, prompt + len(expected))
        assert [context.tolist() for context in seen] == [tokens[:, a:b].tolist() for a, b in expected]

    @pytest.mark.parametrize(
        "sampling",
        [
            SamplingConfig(),
            SamplingConfig(temperature=0.7, top_k=5),
            SamplingConfig(repetition_penalty=1.5, top_p=0.9, min_p=0.01),
            GREEDY,
        ],
    )
    def test_row_i_draws_from_the_seed_and_i_given_all_tokens_so_far(
        self, model: GPT, sampling: SamplingConfig
    ) -> None:
        prompt = ids(3, 4)
        tokens = model.generate(prompt, 30, sampling, seed=11)
        for row in range(3):
            rng = np.random.default_rng([11, row])
            so_far = prompt[row]
            for _ in range(30):
                with torch.no_grad():
                    logits = model(so_far[None, -16:])[0, -1].numpy()
                so_far = torch.cat((so_far, torch.tensor([sample(logits, sampling, so_far.numpy(), rng)])))
            assert tokens[row].tolist() == so_far.tolist()

    def test_seed_decides_and_torchs_generator_is_left_alone(self, model: GPT) -> None:
        state = torch.get_rng_state()
        start = torch.zeros(2, 1, dtype=torch.long)
        first, again, other = (model.generate(start, 40, SamplingConfig(), seed) for seed in (5, 5, 6))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
        assert not torch.equal(first[0], first[1])  # one prompt, two samples
        assert torch.equal(torch.get_rng_state(), state)

    def test_after_a_long_prompt_as_after_its_end(self, model: GPT) -> None:
        long = ids(1, 500)
        whole = model.generate(long, 20, GREEDY, seed=0)
        end = model.generate(long[:, -16:], 20, GREEDY, seed=0)
        assert torch.equal(whole[:, 500:], end[:, 16:])

    def test_no_new_tokens_is_the_prompt(self, model: GPT) -> None:
        prompt = ids(2, 4)
        assert torch.equal(model.generate(prompt, 0, GREEDY, seed=0), prompt)

    def test_dropout_is_off_and_the_mode_restored_and_nothing_is_recorded(self, tiny: ModelConfig) -> None:
        model = GPT(tiny.replace(dropout=0.5)).train()
        prompt = ids(2, 4)
        tokens = model.generate(prompt, 20, GREEDY, seed=0)
        assert model.training
        assert not tokens.requires_grad
        assert torch.equal(tokens, model.eval().generate(prompt, 20, GREEDY, seed=0))
        assert not model.training

    def test_a_nan_is_never_sampled_and_the_mode_is_restored(self, tiny: ModelConfig) -> None:
        model = GPT(tiny).train()
        with torch.no_grad():
            model.lm_head.bias[3] = float("nan")
        with pytest.raises(GptblockError, match=r"(?i)nan|not a number"):
            model.generate(ids(1, 4), 5, SamplingConfig(), seed=0)
        assert model.training

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"input_ids": torch.zeros(1, 0, dtype=torch.long)}, r"T >= 1: got \(1, 0\); .*token 0"),
            ({"input_ids": torch.zeros(3, dtype=torch.long)}, r"must be \(B, T\) with T >= 1: got \(3,\)"),
            ({"max_new_tokens": -1}, "max_new_tokens must be >= 0: got -1"),
            ({"seed": -5}, "seed must be >= 0: got -5"),
            ({"overflow": "crop"}, "overflow must be one of slide, rebase, stop: got 'crop'"),
        ],
    )
    def test_refusals(self, model: GPT, changes: Mapping[str, object], message: str) -> None:
        request = {"input_ids": ids(1, 4), "max_new_tokens": 1, "sampling": GREEDY, "seed": 0, **changes}
        with pytest.raises(InputError, match=message):
            model.generate(**request)


def test_the_whole_model_learns(tiny: ModelConfig) -> None:
    """Every parameter gets a gradient, and a few steps lower the loss on one batch."""
    model = GPT(tiny.replace(init="gpt2"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    input_ids = ids(4, 16)
    targets = input_ids.roll(-1, dims=1)
    losses = []
    for _ in range(20):
        value = loss(model(input_ids), targets)
        optimizer.zero_grad()
        value.backward()
        assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())
        optimizer.step()
        losses.append(value.item())
    assert losses[0] == pytest.approx(F.cross_entropy(torch.zeros(1, 65), torch.tensor([0])).item(), abs=0.05)
    assert losses[-1] < losses[0] - 1
