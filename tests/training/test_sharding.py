"""A model in pieces learns what the whole one learns, and its optimizer's state can be taken from one to the other."""

import copy

import pytest
import torch
import transformers
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.testing import assert_close

from torch_linformer.encoders import linearize
from torch_linformer.models import LinformerConfig, LinformerForMaskedLM
from torch_linformer.training.sharding import gather, shard, share_state, whole_state

pytestmark = [
    pytest.mark.usefixtures("one_process"),
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning"),
]


class Learner:
    """A model, its optimizer, and steps on the same batches whoever learns."""

    def __init__(self, model):
        self.model, self.optimizer = model, torch.optim.AdamW(model.parameters(), lr=1e-2)

    def step(self, seed):
        ids = torch.randint(3, 40, (2, 20), generator=torch.Generator().manual_seed(seed))
        self.model(input_ids=ids, labels=ids).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def build(**options):
    config = LinformerConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=24, k=6, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **options,
    )  # fmt: skip
    return LinformerForMaskedLM(config)


def in_pieces(model):
    """The model in pieces as a learner, with the model itself, which :func:`gather` fills."""
    learner = Learner(shard(model, torch.device("cpu")))
    learner.optimizer.register_load_state_dict_pre_hook(share_state)
    return learner


@pytest.mark.parametrize("options", [{"sharing": "layerwise"}, {"projection": "dynamic"}], ids=str)
def test_pieces_learn_and_go_on_as_the_whole(options):
    model = build(**options)
    whole, waiting = Learner(copy.deepcopy(model)), model
    learner = in_pieces(waiting)
    names = [name for name, module in learner.model.named_modules() if isinstance(module, FSDPModule)]
    assert names == ["", "linformer.encoder.layers.0", "linformer.encoder.layers.1"]
    assert all(isinstance(weight, DTensor) for weight in learner.model.parameters())
    assert len(learner.optimizer.param_groups[0]["params"]) == len(whole.optimizer.param_groups[0]["params"])
    for seed in (0, 1):
        whole.step(seed)
        learner.step(seed)
    assert not torch.equal(waiting.get_input_embeddings().weight, whole.model.get_input_embeddings().weight)
    gather(learner.model, waiting)
    assert_close(waiting.state_dict(), whole.model.state_dict())
    state = whole_state(learner.optimizer.state_dict())
    assert_close(state["state"], whole.optimizer.state_dict()["state"])

    # From the whole to pieces, from pieces to a whole, and on.
    again, alone = in_pieces(copy.deepcopy(whole.model)), Learner(copy.deepcopy(waiting))
    again.optimizer.load_state_dict(copy.deepcopy(whole.optimizer.state_dict()))
    alone.optimizer.load_state_dict(copy.deepcopy(state))
    for each in (whole, again, alone):
        each.step(2)
    gather(again.model, waiting)
    assert_close(waiting.state_dict(), whole.model.state_dict())
    assert_close(alone.model.state_dict(), whole.model.state_dict())


@pytest.mark.parametrize("family", ["Bert", "ModernBert", "Albert", "DistilBert"])
def test_layers_of_linear_encoders_are_units(family):
    """Their embeddings, which the head for masked words shares, are not; texts read exactly change nothing in it."""
    sizes = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "n_layers": 2}
    sizes |= {"intermediate_size": 32, "dim": 16, "n_heads": 2, "hidden_dim": 32, "embedding_size": 16}
    config = getattr(transformers, f"{family}Config")(**sizes, max_position_embeddings=24, pad_token_id=0)
    names = set(config.to_dict())
    config = type(config)(**{name: x for name, x in sizes.items() if name in names or name in config.attribute_map})
    config.max_position_embeddings, config.pad_token_id = 24, 0
    model = linearize(getattr(transformers, f"{family}ForMaskedLM")(config).eval(), k=4, window=4, exact_below=8)
    whole, waiting = Learner(copy.deepcopy(model)), model
    learner = in_pieces(waiting)
    units = [module for module in learner.model.modules() if isinstance(module, FSDPModule)]
    assert len(units) == (2 if family == "Albert" else 3)  # whose layers are one
    assert not any("Embeddings" in type(unit).__name__ for unit in units)
    for seed in (0, 1):
        whole.step(seed)
        learner.step(seed)
    gather(learner.model, waiting)
    assert_close(waiting.state_dict(), whole.model.state_dict())
    hidden = learner.model(torch.ones(1, 9, dtype=torch.long), output_hidden_states=True).hidden_states
    assert len(hidden) == 3
    short = torch.ones(1, 6, dtype=torch.long)
    learner.optimizer.zero_grad()
    learner.model(input_ids=short, labels=short).loss.backward()
    slots = {name: weight.grad for name, weight in learner.model.named_parameters() if ".linformer." in name}
    assert slots and all(grad is not None and not grad.full_tensor().any() for grad in slots.values())
