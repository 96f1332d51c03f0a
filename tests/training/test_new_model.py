import pytest
import torch
from transformers import AutoTokenizer

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.models import LinformerForMaskedLM
from torch_linformer.training import new_model
from torch_linformer.training.initial_model import build_model
from torch_linformer.training.new_model import add_latent_semantics, build_config, build_seq2seq_config
from torch_linformer.training.prepared import new_task
from torch_linformer.training.sizes import SIZES
from torch_linformer.training.splits import load_splits
from torch_linformer.training.train_settings import OF_WORDS, TrainSettings

# Settings become a configuration


@pytest.mark.parametrize("size", SIZES)
def test_the_settings_reach_the_configuration(quick, classifier_run, size):
    expected = SIZES[size]
    numbers = list(range(expected.layers, 0, -1))
    model = {"sharing": "none", "projection": "conv", "activation_memory": "reversible", "chunk_size": 5}
    settings = TrainSettings(**{**quick, "k": ",".join(map(str, numbers)), "model": model, "size": size})
    tokenizer = AutoTokenizer.from_pretrained(classifier_run.folder)
    config = build_config(settings, len(tokenizer), tokenizer.pad_token_id, {})
    assert (config.hidden_size, config.num_hidden_layers) == (expected.hidden_size, expected.layers)
    assert (config.num_attention_heads, config.intermediate_size) == (expected.heads, expected.feed_forward)
    assert config.k == (numbers if len(numbers) > 1 else 1)
    assert (config.sharing, config.projection, config.attention) == ("none", "conv", "linformer")
    assert (config.activation_memory, config.chunk_size, config.norm_first) == ("reversible", 5, True)
    assert (config.max_position_embeddings, config.vocab_size) == (quick["max_length"], len(tokenizer))
    assert config.pad_token_id == tokenizer.pad_token_id


def test_chosen_slots_reach_the_configuration(quick, classifier_run):
    options = {"projection": "dynamic", "sharing": "kv_per_head", "slot_mass": "learned", "exact_first": 1}
    options |= {"exact_last": 2}
    tokenizer = AutoTokenizer.from_pretrained(classifier_run.folder)
    config = build_config(TrainSettings(**{**quick, "model": options}), 300, 0, {})
    assert {name: getattr(config, name) for name in options} == options
    alone = build_config(TrainSettings(**{**quick, "model": None, "k": "0", "window": 4}), 300, 0, {})
    assert (alone.k, alone.window) == (0, 4)
    causal = build_config(TrainSettings(task="clm", max_length=24, model={"exact_first": 3}), 300, 0, {})
    assert causal.exact_first == 3
    both = TrainSettings(**{**quick, "model": options, "task": "seq2seq", "max_target_length": 12})
    pair = build_seq2seq_config(both, tokenizer, {"bos_token_id": 2, "eos_token_id": 3})
    assert (pair.encoder.exact_first, pair.decoder.exact_first, pair.memory_projection) == (1, 0, "dynamic")


def test_slots_chosen_by_the_input_have_one_map_a_head_unless_somebody_says_otherwise():
    """Two P, for keys and for values, learn slowly."""
    sharing = {}
    for model in ({}, {"projection": "linear"}, {"projection": "dynamic"}, {"projection": "dynamic", "sharing": "kv"}):
        config = build_config(TrainSettings(max_length=24, model=model), 300, 0, {})
        sharing[tuple(model.values())] = config.sharing
    assert list(sharing.values()) == ["headwise", "headwise", "kv_per_head", "kv"]


def test_tags_and_answers_need_positions():
    def positions(**options):
        return build_config(TrainSettings(max_length=24, **options), 300, 0, {}).position_embedding

    kinds = {task: positions(task=task) for task in ("classify", "mlm", "token-classify", "qa", "clm")}
    assert kinds == {"classify": "none", "mlm": "none", "token-classify": "learned", "qa": "learned", "clm": "rotary"}
    assert positions(size="small") == "learned"


# First word embeddings


@pytest.fixture
def begun(datasets_cache, tmp_path, write_csv):
    """A function: the model that a training on documents of two topics begins with, and its tokenizer.

    The documents of one topic come first, as in a file that is sorted by label.
    """
    rows = [("sand sea warm", "sun")] * 20 + [("mud grey wet", "rain")] * 20
    data = write_csv(tmp_path / "sorted.csv", rows)

    def build(with_semantics=True, **options):
        settings = TrainSettings(**{"data": data, "max_length": 32, "tokenizer": "bpe:300", **options})
        splits = load_splits(settings)
        tokenizer = build_tokenizer(settings.tokenizer, splits.train["text"], max_length=32)
        task = new_task(settings, None, tokenizer, splits.names, splits.train)
        model = build_model(settings, None, task, splits)
        if with_semantics and settings.task in OF_WORDS:
            add_latent_semantics(
                model,
                task.examples(splits.train, DocumentEncoder(tokenizer, 32)).windows,
                peak_rate=settings.peak_rate,
                seed=settings.seed,
            )
        return model, tokenizer

    return build


def embeddings(model, tokenizer, words):
    ids = tokenizer(words, add_special_tokens=False)["input_ids"]
    assert len(ids) == len(words.split())  # a token each
    return model.get_input_embeddings().weight.detach()[ids]


def test_words_of_the_same_documents_begin_alike(begun):
    model, tokenizer = begun()
    vectors = embeddings(model, tokenizer, " sea warm grey wet")
    alike = torch.nn.functional.cosine_similarity(vectors[:, None], vectors[None], dim=-1)
    assert alike[0, 1] > 0.9 and alike[2, 3] > 0.9
    assert alike[:2, 2:].max() < 0.5


def test_the_embeddings_of_masked_language_modeling_are_as_the_model_draws_them(begun):
    masked, _ = begun(task="mlm")
    torch.manual_seed(0)
    fresh = LinformerForMaskedLM(masked.config)
    assert all(torch.equal(p, q) for p, q in zip(masked.parameters(), fresh.parameters(), strict=True))


def test_the_vectors_are_as_large_as_a_hundred_steps_of_the_optimiser(begun):
    random, _ = begun(with_semantics=False)
    for rate in (0.001, 0.1):
        model, tokenizer = begun(learning_rate=rate)
        added = (model.get_input_embeddings().weight - random.get_input_embeddings().weight).detach()
        assert added.square().mean().sqrt() == pytest.approx(100 * rate, rel=1e-3)
        assert not model.get_input_embeddings().weight[tokenizer.pad_token_id].any()
        others = [name for name, _ in model.named_parameters() if "word_embeddings" not in name]
        assert all(torch.equal(model.get_parameter(name), random.get_parameter(name)) for name in others)


def test_of_many_documents_some_are_drawn_from_everywhere(begun, monkeypatch):
    monkeypatch.setattr(new_model, "_LSA_DOCUMENTS", 8)
    model, tokenizer = begun()
    assert embeddings(model, tokenizer, " sea warm grey wet").norm(dim=-1).min() > 0.5
