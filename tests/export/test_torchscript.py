"""The TorchScript file: the same logits, no dropout, movable, and a generate that libtorch programs call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from gptblock.config import SamplingConfig
from gptblock.export.torchscript import export_torchscript, load_torchscript


@pytest.fixture(scope="module")
def scripted(tiny_bundle: Path) -> torch.jit.ScriptModule:
    return load_torchscript(tiny_bundle / "model.pt")


@pytest.fixture
def ids() -> torch.Tensor:
    return torch.randint(65, (2, 16), generator=torch.Generator().manual_seed(3))


def test_training_mode_brings_no_dropout_back(scripted, tiny_model, ids):
    with torch.no_grad():
        expected = tiny_model(ids)
        scripted.train()
        try:
            assert torch.equal(scripted(ids), expected)
        finally:
            scripted.eval()


def test_the_model_that_is_exported_keeps_its_mode_and_its_dropout(make_model, tmp_path):
    model = make_model(n_layer=1).train()
    before = repr(model)
    export_torchscript(model, tmp_path / "model.pt")
    assert repr(model) == before
    assert model.blocks[0].attention.dropout == 0.2
    assert all(module.training for module in model.modules())


def test_the_graph_names_no_device_and_nothing_random(scripted):
    graph = str(scripted.inlined_graph)
    assert "Device" not in graph
    assert "cpu" not in graph
    assert "aten::dropout" not in graph
    assert "multinomial" not in graph
    assert str(scripted.generate.inlined_graph).count("aten::multinomial") == 1


def test_weights_are_weights_not_constants(scripted, tiny_model, tiny_bundle):
    """A frozen file has an empty state dict, and .to() does nothing to it."""
    assert {name.removeprefix("model.") for name in scripted.state_dict()} == set(tiny_model.state_dict())
    doubled = load_torchscript(tiny_bundle / "model.pt").double()
    assert doubled(torch.zeros(1, 1, dtype=torch.int64)).dtype == torch.float64


def test_greedy_generate_is_the_reference_beyond_block_size(scripted, tiny_model, ids):
    expected = tiny_model.generate(ids[:, :5], 30, SamplingConfig(temperature=0.0), seed=0)
    assert torch.equal(scripted.generate(ids[:, :5], 30, 0.0, 0), expected)


def test_top_k_1_is_greedy_at_any_temperature(scripted, ids):
    greedy = scripted.generate(ids, 8, 0.0, 0)
    assert torch.equal(scripted.generate(ids, 8, 2.0, 1), greedy)


def test_sampling_draws_from_the_distribution(scripted, tiny_model):
    start = torch.full((4000, 1), 7)
    torch.manual_seed(0)
    drawn = scripted.generate(start, 1, 0.7, 3)[:, 1]
    with torch.no_grad():
        logits = tiny_model(start[:1])[0, -1] / 0.7
    top = logits.topk(3)
    expected = torch.zeros(65).scatter(0, top.indices, top.values.softmax(0))
    frequencies = torch.bincount(drawn, minlength=65) / len(drawn)
    assert (frequencies - expected).abs().max() < 0.03  # four standard deviations at 4000 draws


def test_a_sequence_above_block_size_is_refused_with_both_lengths(scripted):
    with pytest.raises(torch.jit.Error, match=r"the input is 17 tokens long .* block_size = 16"):
        scripted(torch.zeros(1, 17, dtype=torch.int64))


def test_deprecation_warnings_stay_inside(tiny_model, tmp_path, recwarn):
    export_torchscript(tiny_model, tmp_path / "model.pt")
    load_torchscript(tmp_path / "model.pt")
    assert not recwarn.list


def test_no_weight_of_the_file_asks_for_gradients_and_the_models_own_still_do(make_model, tmp_path):
    model = make_model(n_layer=1, dropout=0.2)
    export_torchscript(model, tmp_path / "model.pt")
    loaded = load_torchscript(tmp_path / "model.pt")
    assert not any(weight.requires_grad for weight in loaded.parameters())
    assert all(weight.requires_grad for weight in model.parameters())
    assert any(isinstance(part, nn.Dropout) and part.p == 0.2 for part in model.modules())
