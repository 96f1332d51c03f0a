"""The encoder-decoder: what transformers' users expect of one, with Linformer attention and with full attention."""

import copy
import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from safetensors.torch import load_file
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import AutoConfig, AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq, GenerationConfig
from transformers.modeling_outputs import BaseModelOutput

from torch_linformer.models import (
    LinformerCache,
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerSeq2SeqConfig,
)

ROWS, SOURCE, TARGET, VOCABULARY = 3, 11, 9, 37
START, EOS, PAD = 1, 36, 0
# Distinct sizes on the two sides.
DECODER = {
    "hidden_size": 12,
    "num_hidden_layers": 3,
    "intermediate_size": 19,
    "max_position_embeddings": 31,
    "k": 5,
    "window": 3,
    "causal": True,
    "type_vocab_size": 0,
}
LAYOUTS = {
    "linformer": {},
    "rotary": {"decoder": {"position_embedding": "rotary", "norm_first": True}, "memory_sharing": "layerwise"},
    "mean": {"memory_projection": "mean", "memory_k": [2, 3, 4]},
    "full": {"decoder": {"attention": "full", "window": None}, "encoder": {"attention": "full"}},
}
layouts = pytest.mark.parametrize("layout", LAYOUTS)
both = pytest.mark.parametrize("layout", ["linformer", "full"])


@pytest.fixture(scope="session")
def seq2seq_config(tiny):
    """A function: a tiny configuration of a layout, with fields changed on either side or on the whole."""

    def make(layout="linformer", *, encoder=None, decoder=None, **fields):
        chosen = {**LAYOUTS[layout], **fields}
        for side, own in (("encoder", {}), ("decoder", DECODER)):
            changed = {"encoder": encoder, "decoder": decoder}[side] or {}
            chosen[side] = tiny(**{**own, **LAYOUTS[layout].get(side, {}), **changed})
        options = {"bos_token_id": START, "eos_token_id": EOS, "share_embeddings": False, **chosen}
        return LinformerSeq2SeqConfig(**options)

    return make


@pytest.fixture(scope="session")
def make(seq2seq_config):
    """A function: a tiny model in eval mode, no number of which is at a special value."""

    def build_model(layout="linformer", *, dtype=torch.float64, **fields):
        torch.manual_seed(0)
        model = LinformerForConditionalGeneration(seq2seq_config(layout, **fields)).to(dtype).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        return model

    return build_model


@pytest.fixture
def source(token_ids):
    return token_ids(ROWS, SOURCE)


@pytest.fixture
def target(token_ids):
    return token_ids(TARGET, ROWS).T.contiguous()


def padded(ids, side, columns=4, filler=5):
    """The ids between, before or behind padding of some token, and their mask."""
    padding, real = torch.full_like(ids[:, :columns], filler), torch.ones_like(ids)
    order = slice(None, None, -1 if side == "left" else 1)
    return torch.cat([ids, padding][order], dim=1), torch.cat([real, torch.zeros_like(padding)][order], dim=1)


def sampling(name):
    return {
        "greedy": {},
        "sampling": {"do_sample": True, "num_return_sequences": 2},
        "beams": {"num_beams": 3, "num_return_sequences": 2},
        "beam-sampling": {"num_beams": 2, "do_sample": True},
    }[name]


@layouts
@pytest.mark.parametrize(
    ("how", "side"), [("greedy", "right"), ("sampling", "left"), ("beams", "left"), ("beam-sampling", "right")]
)
def test_generation_with_a_cache_is_generation_without(make, source, layout, how, side):
    model, (ids, mask) = make(layout), padded(source, side)
    options = {"max_new_tokens": 8, "output_scores": True, "return_dict_in_generate": True, **sampling(how)}
    results = []
    for inputs in ({"input_ids": ids, "attention_mask": mask}, {"input_ids": source}):
        for use_cache in (True, False):
            torch.manual_seed(1)
            results.append(model.generate(**inputs, use_cache=use_cache, **options))
    for result in results[1:]:
        assert torch.equal(result.sequences, results[0].sequences)
        assert_close(result.scores, results[0].scores)
    assert results[0].sequences[:, 0].eq(START).all()
    assert isinstance(results[0].past_key_values, LinformerCache) and results[1].past_key_values is None


@layouts
@torch.no_grad()
def test_greedy_generation_is_the_most_likely_token_each_time(make, source, layout):
    model, target = make(layout), torch.full((ROWS, 1), START)
    for _ in range(7):
        scores = model(source, decoder_input_ids=target).logits[:, -1]
        target = torch.cat([target, scores.argmax(-1, keepdim=True)], dim=1)
    found = model.generate(source, max_new_tokens=7, eos_token_id=None)
    assert torch.equal(found, target)


@both
@torch.no_grad()
def test_generation_stops_at_the_end_token_and_pads(make, source, layout):
    model = make(layout)
    free = model.generate(source, max_new_tokens=8, eos_token_id=None)
    end = free[0, 3].item()
    stopped = model.generate(source, max_new_tokens=8, eos_token_id=end, pad_token_id=PAD)
    first = free[0].tolist().index(end, 1)
    assert torch.equal(stopped[0, : first + 1], free[0, : first + 1])
    assert stopped[0, first + 1 :].eq(PAD).all()


@both
@torch.no_grad()
def test_generation_takes_embeddings_outputs_of_the_encoder_and_a_beginning(make, source, target, layout):
    model = make(layout)
    expected = model.generate(source, max_new_tokens=6)
    embeds = model.get_input_embeddings()(source)
    assert torch.equal(model.generate(inputs_embeds=embeds, max_new_tokens=6), expected)
    encoded = model.get_encoder()(source)
    assert torch.equal(model.generate(encoder_outputs=encoded, max_new_tokens=6), expected)
    begun = model.generate(source, decoder_input_ids=expected[:, :4], max_new_tokens=3)
    assert torch.equal(begun, expected)
    begun = model.generate(source, decoder_input_ids=target, max_new_tokens=3)
    assert torch.equal(begun[:, : TARGET + 1], F.pad(target, (1, 0), value=START))
    types = torch.ones_like(source)
    typed = model.generate(source, token_type_ids=types, max_new_tokens=6, num_beams=2)
    again = model.generate(encoder_outputs=model.encoder(source, None, types), max_new_tokens=6, num_beams=2)
    assert torch.equal(typed, again)


@both
@torch.no_grad()
def test_the_encoder_runs_once_and_each_memory_is_compressed_once(make, source, layout, monkeypatch):
    model, runs = make(layout), []
    model.encoder.register_forward_hook(lambda *_: runs.append("encoder"))
    for layer in model.decoder.decoder.layers:
        plain = layer.multihead_attn.compress
        monkeypatch.setattr(layer.multihead_attn, "compress", lambda *a, plain=plain: runs.append("layer") or plain(*a))
    model.generate(source, max_new_tokens=6, eos_token_id=None)
    assert runs == ["encoder", *["layer"] * 3]


def test_no_assistant_proposes_tokens_that_the_cache_could_not_forget(make, source):
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        make().generate(source, assistant_model=make(), max_new_tokens=3)


@pytest.mark.parametrize("layout", ["linformer", "rotary", "mean"])
@torch.no_grad()
def test_the_cache_does_not_grow_with_the_target_and_with_the_source_up_to_k(make, token_ids, layout):
    model, sizes = make(layout), set()
    longest = model.config.encoder.max_position_embeddings
    all_k = model.config.memory_k if isinstance(model.config.memory_k, list) else [model.config.memory_k] * 3
    for source_length, target_length in ((1, 1), (4, 20), (29, 3)):
        cache = model(token_ids(2, source_length), decoder_input_ids=token_ids(2, target_length)).past_key_values
        # Of K means a short source has those alone that it reaches.
        slots = [-(-source_length // -(-longest // k)) if layout == "mean" else k for k in all_k]
        assert all(number <= k for number, k in zip(slots, all_k, strict=True))
        # Rows, keys and values, slots, channels, bytes.
        assert [memory.nbytes for memory in cache.memories] == [2 * 2 * number * 12 * 8 for number in slots]
        own = sum(past.nbytes for past in cache.pasts)
        assert cache.nbytes == own + sum(memory.nbytes for memory in cache.memories)
        sizes.add(own)
    assert len(sizes) == 1


@layouts
@pytest.mark.parametrize("side", ["left", "right"])
@torch.no_grad()
def test_a_target_in_parts_gives_the_logits_of_the_whole(make, source, target, layout, side):
    model, (ids, mask) = make(layout), padded(source, side)
    expected = model(ids, mask, decoder_input_ids=target).logits
    cache, parts = None, []
    for part in target.split([4, 1, 1, 3], dim=1):
        read = {"input_ids": ids, "attention_mask": mask} if cache is None else {}
        outputs = model(**read, decoder_input_ids=part, past_key_values=cache)
        parts.append(outputs.logits)
        cache = outputs.past_key_values
    assert_close(torch.cat(parts, dim=1), expected)
    assert cache.get_seq_length() == TARGET


@layouts
@torch.no_grad()
def test_rows_of_a_cache_may_be_reordered_and_repeated(make, source, target, layout):
    model = make(layout)
    (first, second), order = target.split([5, 4], dim=1), torch.tensor([2, 0, 2])
    for rows, change in (
        (order, lambda cache: cache.reorder_cache(order)),
        (order, lambda cache: cache.batch_select_indices(order)),
        (torch.arange(ROWS).repeat_interleave(2), lambda cache: cache.batch_repeat_interleave(2)),
    ):
        cache = model(source, decoder_input_ids=first).past_key_values
        change(cache)
        found = model(decoder_input_ids=second[rows], past_key_values=cache).logits
        assert_close(found, model(source[rows], decoder_input_ids=target[rows]).logits[:, 5:])
    cache.reset()
    assert cache.memories is None and cache.nbytes == 0
    cache.batch_repeat_interleave(2)
    assert_close(model(source, decoder_input_ids=first, past_key_values=cache).logits.shape, (ROWS, 5, VOCABULARY))


@layouts
@pytest.mark.parametrize(("source_side", "target_side"), [("left", "right"), ("right", "left")])
@torch.no_grad()
def test_padding_on_any_side_changes_nothing(make, source, target, layout, source_side, target_side):
    model = make(layout)
    expected = model(source, decoder_input_ids=target, output_attentions=True)
    (ids, mask), (decoder_ids, decoder_mask) = padded(source, source_side), padded(target, target_side, 2)
    masks = {"attention_mask": mask, "decoder_attention_mask": decoder_mask}
    found = model(ids, decoder_input_ids=decoder_ids, output_attentions=True, **masks)
    rows = slice(2, None) if target_side == "left" else slice(TARGET)
    assert_close(found.logits[:, rows], expected.logits)
    for weights, wanted in zip(found.cross_attentions, expected.cross_attentions, strict=True):
        columns = slice(None)
        if layout == "full":
            columns = slice(4, None) if source_side == "left" else slice(SOURCE)
        assert_close(weights[:, :, rows, columns], wanted)


@both
@torch.no_grad()
def test_a_masked_token_of_the_source_is_as_if_it_were_not_there(make, source, target, layout):
    model, mask = make(layout), torch.ones_like(source)
    mask[0, 4] = 0
    found = model(source, mask, decoder_input_ids=target).logits
    assert_close(found[1:], model(source, decoder_input_ids=target).logits[1:])
    without = torch.cat([source[:1, :4], source[:1, 5:]], dim=1)
    assert_close(found[:1], model(without, decoder_input_ids=target[:1]).logits)
    assert not torch.allclose(found[:1], model(source[:1], decoder_input_ids=target[:1]).logits)


@both
def test_nan_at_padding_reaches_nothing_and_gets_no_gradient(make, source, target, layout):
    model, results = make(layout), []
    masks = [torch.tensor([[0] * (n // 3) + [1] * (n - n // 3)] * 2 + [[1] * n]) for n in (SOURCE, TARGET)]
    for poison in (None, float("nan")):
        embeds = [
            model.get_encoder().get_input_embeddings()(source).detach(),
            model.get_decoder().get_input_embeddings()(target).detach(),
        ]
        if poison is not None:
            embeds = [x.masked_fill(mask[..., None] == 0, poison) for x, mask in zip(embeds, masks, strict=True)]
        embeds = [x.requires_grad_() for x in embeds]
        options = {"attention_mask": masks[0], "decoder_attention_mask": masks[1]}
        logits = model(inputs_embeds=embeds[0], decoder_inputs_embeds=embeds[1], **options).logits
        real = logits[masks[1] != 0]
        gradients = torch.autograd.grad(real.square().sum(), [*embeds, *model.decoder.decoder.parameters()])
        for gradient, mask in zip(gradients, masks, strict=False):
            assert not gradient[mask == 0].any() and gradient[mask != 0].any()
        results.append([real, *gradients])
    assert_close(*results, rtol=0, atol=0)


@layouts
def test_no_logit_depends_on_what_comes_after_it(make, source, target, layout):
    model = make(layout)
    embeds = model.get_decoder().get_input_embeddings()(target).detach().requires_grad_()
    logits = model(source, decoder_inputs_embeds=embeds).logits
    for t in range(TARGET):
        (gradient,) = torch.autograd.grad(logits[:, t].square().sum(), embeds, retain_graph=True)
        assert not gradient[:, t + 1 :].any() and gradient[:, t].any()


@both
@torch.no_grad()
def test_outputs_of_the_encoder_are_taken_as_they_are(make, source, target, layout):
    model, (ids, mask) = make(layout), padded(source, "left")
    expected = model(ids, mask, decoder_input_ids=target)
    encoded = model.get_encoder()(ids, mask)
    for given in (encoded, BaseModelOutput(encoded.last_hidden_state), encoded.to_tuple()):
        found = model(attention_mask=mask, encoder_outputs=given, decoder_input_ids=target)
        assert_close(found.logits, expected.logits, rtol=0, atol=0)
        assert_close(found.encoder_last_hidden_state, expected.encoder_last_hidden_state)
    assert_close(model(ids, mask, decoder_input_ids=target, return_dict=False)[0], expected.logits)
    assert_close(model(ids, mask, decoder_input_ids=target, logits_to_keep=2).logits, expected.logits[:, -2:])


@both
@torch.no_grad()
def test_everything_recorded_has_its_shape(make, source, target, layout):
    model = make(layout)
    outputs = model(source, decoder_input_ids=target, output_attentions=True, output_hidden_states=True)
    assert [x.shape for x in outputs.encoder_hidden_states] == [(ROWS, SOURCE, 15)] * 3
    assert [x.shape for x in outputs.decoder_hidden_states] == [(ROWS, TARGET, 12)] * 4
    keys, slots, memory = (SOURCE, TARGET, SOURCE) if layout == "full" else (7, 5 + 3, 7)
    assert [x.shape for x in outputs.encoder_attentions] == [(ROWS, 3, SOURCE, keys)] * 2
    assert [x.shape for x in outputs.decoder_attentions] == [(ROWS, 3, TARGET, slots)] * 3
    assert [x.shape for x in outputs.cross_attentions] == [(ROWS, 3, TARGET, memory)] * 3
    assert_close(outputs.cross_attentions[0].sum(-1), torch.ones(ROWS, 3, TARGET).double())
    silent = model(source, decoder_input_ids=target)
    assert silent.cross_attentions is silent.decoder_attentions is silent.decoder_hidden_states is None
    assert_close(silent.logits, outputs.logits)
    options = {"output_attentions": True, "return_dict_in_generate": True, "max_new_tokens": 2, "eos_token_id": None}
    assert len(model.generate(source, **options).cross_attentions) == 2


def test_labels_are_shifted_and_the_ignored_ones_padded(make):
    labels = torch.tensor([[7, 8, EOS], [9, -100, -100]])
    expected = torch.tensor([[START, 7, 8], [START, 9, PAD]])
    assert torch.equal(make().prepare_decoder_input_ids_from_labels(labels), expected)
    assert labels[1, 1] == -100
    model = make(decoder={"pad_token_id": None}, encoder={"pad_token_id": None})
    assert torch.equal(model.prepare_decoder_input_ids_from_labels(labels)[1], torch.tensor([START, 9, START]))


@both
def test_the_loss_is_the_mean_over_labels_that_count(make, source, target, layout):
    model, labels = make(layout), target.clone()
    labels[0, 5:] = labels[2, 2:] = -100
    outputs = model(source, labels=labels)
    inputs = model.prepare_decoder_input_ids_from_labels(labels)
    assert_close(outputs.logits, model(source, decoder_input_ids=inputs).logits)
    terms = [-outputs.logits[r, t].log_softmax(-1)[labels[r, t]] for r, t in (labels != -100).nonzero().tolist()]
    assert_close(outputs.loss, torch.stack(terms).mean().float(), check_dtype=False)
    # Whatever stands behind a short target, no token of it sees it.
    assert_close(model(source[2:], labels=labels[2:, :2]).logits, outputs.logits[2:, :2])


def test_the_collator_of_transformers_makes_its_batches(make):
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({f"[{i}]": i for i in range(VOCABULARY)}, unk_token="[2]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token=f"[{PAD}]")
    model = make()
    collate = DataCollatorForSeq2Seq(tokenizer, model=model)
    rows = [{"input_ids": [3, 4, 5], "labels": [6, EOS]}, {"input_ids": [7], "labels": [8, 9, EOS]}]
    batch = collate(rows)
    assert batch["decoder_input_ids"].tolist() == [[START, 6, EOS], [START, 8, 9]]
    alone = [model(torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])).loss for row in rows]
    assert_close(model(**batch).loss, (2 * alone[0] + 3 * alone[1]) / 5)


@pytest.mark.parametrize("memory", ["none", "checkpoint"])
@pytest.mark.parametrize("model_class", [LinformerForConditionalGeneration, LinformerForCausalLM])
def test_no_past_is_read_twice_where_layers_run_again(enable_checkpointing, make, build, source, model_class, memory):
    if model_class is LinformerForCausalLM:
        model = build(LinformerForCausalLM, causal=True, activation_memory=memory)
    else:
        model = make(decoder={"activation_memory": memory})

    def gradients(**options):
        model.zero_grad()
        outputs = model(source, labels=source, **options)
        outputs.loss.backward()
        return outputs.past_key_values, {name: p.grad for name, p in model.named_parameters()}

    _, expected = gradients(use_cache=False)
    cache, found = gradients()
    assert cache is not None
    assert_close(found, expected)
    with torch.no_grad():
        cache = model(source, labels=source).past_key_values
    assert cache is not None
    enable_checkpointing(model.train())
    assert gradients(use_cache=True)[0] is None
    with pytest.raises(ValueError, match="past_key_values with gradient checkpointing: layers computed again"):
        gradients(past_key_values=cache)


@both
@pytest.mark.parametrize(
    ("share", "tie", "dtype"),
    [(True, True, torch.float32), (False, True, torch.bfloat16), (True, False, torch.float64)],
)
@torch.no_grad()
def test_what_is_tied_is_saved_once(make, source, target, tmp_path, layout, share, tie, dtype):
    width = {"hidden_size": 15} if share and tie else {}
    model = make(layout, dtype=dtype, share_embeddings=share, tie_word_embeddings=tie, decoder=width)
    model.generation_config = GenerationConfig.from_model_config(model.config)
    model.save_pretrained(tmp_path)
    matrices = [
        x for x in load_file(tmp_path / "model.safetensors").values() if x.shape[0] == VOCABULARY and x.dim() > 1
    ]
    assert len(matrices) == (3 if not tie else 1 if share else 2)
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    assert type(loaded) is LinformerForConditionalGeneration and loaded.dtype == dtype
    assert_close(loaded(source, labels=target).logits, model(source, labels=target).logits)
    embeddings = [x.get_input_embeddings().weight for x in (loaded.encoder, loaded.decoder)]
    assert (embeddings[0] is embeddings[1]) == (share and tie)
    assert (loaded.get_output_embeddings().weight is embeddings[1]) == tie
    generation = loaded.generation_config
    assert (generation.decoder_start_token_id, generation.eos_token_id, generation.pad_token_id) == (START, EOS, PAD)


def test_vocabularies_of_their_own_are_not_resized_together(make):
    apart = make()
    with pytest.raises(ValueError, match=r"embeddings of their own: model.encoder.resize_token_embeddings"):
        apart.resize_token_embeddings(41)
    assert apart.resize_token_embeddings() is apart.get_input_embeddings()


@layouts
@pytest.mark.parametrize("mode", ["interpolate", "keep"])
@torch.no_grad()
def test_longer_sources_and_targets(make, token_ids, tmp_path, layout, mode):
    model = make(layout)
    source, target = token_ids(2, 35), token_ids(2, 33)
    with pytest.raises(ValueError, match=r"35 positions but max_len is 29: .* call resize_max_len\(35\) on the model"):
        model(source, labels=target[:, :9])
    before = model(source[:, :20], labels=target[:, :20]).logits
    model.resize_max_len(35, mode)
    if model.config.decoder.longest_input is not None:
        model.decoder.resize_max_len(33, mode)
    assert model(source, labels=target).logits.isfinite().all()
    if mode == "keep" and layout != "mean":
        assert_close(model(source[:, :20], labels=target[:, :20]).logits, before)
    model.save_pretrained(tmp_path)
    loaded = LinformerForConditionalGeneration.from_pretrained(tmp_path)
    assert_close(loaded(source, labels=target).logits, model(source, labels=target).logits)
    with pytest.raises(ValueError, match="mode must be 'interpolate' or 'keep', got 'stretch'"):
        model.decoder.resize_max_len(40, "stretch")
    with pytest.raises(ValueError, match=r"max_len must be at least memory_k = \d, got 1"):
        model.resize_max_len(1)


def test_a_target_longer_than_learned_positions_is_refused_and_rotary_ones_have_no_end(make, token_ids):
    ids = token_ids(2, 32)
    with pytest.raises(ValueError, match=r"32 positions but max_len is 31: .* call resize_max_len\(32\)"):
        make()(ids[:, :9], labels=ids)
    assert make("rotary")(ids[:, :9], labels=ids).loss.isfinite()


def test_evaluation_by_the_trainer_leaves_the_cache_out(seq2seq_config):
    assert seq2seq_config().keys_to_ignore_at_inference == ["past_key_values", "cache"]


def test_first_weights_come_from_the_configuration_of_each_side(seq2seq_config, poisoned_memory):
    config = seq2seq_config(encoder={"initializer_range": 0.5}, decoder={"initializer_range": 0.05})
    model = LinformerForConditionalGeneration(config)
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    for part, wanted in (("encoder.", 0.5), ("decoder.", 0.05), ("lm_head_transform.", 0.05)):
        own = [(name, p) for name, p in model.named_parameters() if name.startswith(part)]
        weights = [p for name, p in own if name.endswith(("linear1.weight", "transform.0.weight"))]
        assert weights and all(0.7 * wanted < weight.std() < 1.3 * wanted for weight in weights)
    for layer in model.decoder.decoder.layers:
        assert 0.7 < layer.multihead_attn.context.proj_k.weight.std() * 29**0.5 < 1.3


@both
@torch.no_grad()
def test_low_precision(make, source, target, layout):
    ids, mask = padded(source, "left")
    model = make(layout, dtype=torch.bfloat16)
    outputs = model(ids, mask, labels=target)
    assert outputs.logits.dtype == torch.bfloat16 and outputs.loss.dtype == torch.float32
    exact = copy.deepcopy(model).double()(ids, mask, labels=target)
    assert_close(outputs.loss.double(), exact.loss.double(), rtol=0.05, atol=0)
    assert model.generate(ids, attention_mask=mask, max_new_tokens=3, eos_token_id=None).shape == (ROWS, 4)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        rough = copy.deepcopy(model).float()(ids, mask, labels=target)
    assert_close(rough.loss.double(), exact.loss.double(), rtol=0.05, atol=0)


def test_configurations_are_composed_of_dicts_or_objects(tiny, tmp_path):
    encoder, decoder = tiny(k=[3, 7], sharing="kv"), tiny(causal=True, window=3, pad_token_id=4)
    composed = LinformerSeq2SeqConfig(encoder=encoder, decoder=decoder, share_embeddings=False, eos_token_id=2)
    assert composed.encoder is encoder and composed.decoder is decoder
    assert (composed.memory_k, composed.memory_sharing, composed.memory_projection) == (7, "kv", "linear")
    assert (composed.pad_token_id, composed.decoder_start_token_id) == (4, 4)
    assert composed.is_encoder_decoder and composed.get_text_config(decoder=True) is decoder
    composed.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_text())
    assert saved["model_type"] == "linformer_seq2seq" and saved["decoder"]["window"] == 3
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert type(loaded) is LinformerSeq2SeqConfig
    assert loaded.to_dict() == {**composed.to_dict(), "_name_or_path": str(tmp_path)}
    of_dicts = LinformerSeq2SeqConfig(encoder={"k": 9}, decoder={"window": 5}, bos_token_id=6)
    assert (of_dicts.encoder.k, of_dicts.decoder.window, of_dicts.decoder.causal) == (9, 5, True)
    assert of_dicts.decoder_start_token_id == 6
    assert isinstance(LinformerSeq2SeqConfig().decoder, LinformerConfig)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"encoder": {"causal": True}}, "encoder must read in both directions: leave causal=True out"),
        (
            {"decoder": {"causal": False}},
            r"decoder must be causal: give LinformerConfig\(causal=True, ...\), or a dict",
        ),
        (
            {"decoder": {"activation_memory": "reversible", "norm_first": True}},
            "^activation_memory='reversible' belongs to encoders: take 'checkpoint' for a decoder$",
        ),
        ({"memory_k": 30, "encoder": {"max_position_embeddings": 29, "k": 7}}, "max_position_embeddings = 29, got 30"),
        ({"memory_k": [3, 0]}, "memory_k must lie between 1 and the encoder's max_position_embeddings = 4096, got 0"),
        (
            {"memory_projection": "fourier"},
            "memory_projection must be one of linear, random, conv, mean, max, dynamic, got 'f",
        ),
        (
            {"memory_projection": "mean", "memory_sharing": "kv"},
            "^memory_sharing='kv' has no effect on slots made by projection='mean': leave it at 'he",
        ),
        ({"decoder": {"attention": "full", "window": 3}}, "^window=3 has no effect on causal full attention: "),
        ({"decoder": {"sharing": "kv"}}, "^sharing='kv' has no effect on causal attention, whose slots are running "),
        (
            {"memory_sharing": "heads"},
            "memory_sharing must be one of none, kv_per_head, headwise, kv, layerwise",
        ),
        (
            {"encoder": {"hidden_size": 96}},
            "share_embeddings=True needs one hidden_size, got 96 in the encoder and 768",
        ),
        (
            {"encoder": {"vocab_size": 9}},
            "share_embeddings=True needs one vocab_size, got 9 in .* share_embeddings=False",
        ),
        ({"encoder": {"pad_token_id": 1}}, "share_embeddings=True needs one pad_token_id, got 1 in the encoder and 0"),
        ({"encoder": {"pad_token_id": None}, "decoder": {"pad_token_id": None}}, "give decoder_start_token_id"),
    ],
)
def test_configurations_of_no_model_are_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        LinformerSeq2SeqConfig(**fields)


@pytest.mark.parametrize("fields", [{"decoder": 3}, {"memory_k": "3"}])
def test_values_of_another_type_are_refused(fields):
    with pytest.raises(StrictDataclassFieldValidationError, match=f"'{next(iter(fields))}'"):
        LinformerSeq2SeqConfig(**fields)


def test_saved_options_that_changed_parts_do_not_have_are_left_out():
    saved = {"encoder": {"sharing": "kv"}, "decoder": {"causal": True, "window": 3}, "bos_token_id": START}
    changes = {"encoder": {"projection": "mean"}, "decoder": {"attention": "full"}, "memory_projection": "max"}
    config = LinformerSeq2SeqConfig.from_dict({**saved, "memory_sharing": "layerwise"}, **changes)
    assert (config.encoder.sharing, config.decoder.window, config.memory_sharing) == ("headwise", None, "headwise")
    assert (config.encoder.projection, config.memory_projection) == ("mean", "max")
    assert saved["encoder"] == {"sharing": "kv"} and saved["decoder"] == {"causal": True, "window": 3}


def test_a_saved_model_is_opened_with_changes(make, source, target, tmp_path):
    make(memory_sharing="kv").save_pretrained(tmp_path)
    open_with = LinformerForConditionalGeneration.from_pretrained
    full = open_with(tmp_path, decoder={"attention": "full"})
    assert full.config.decoder.attention == "full" and full.config.decoder.window is None
    assert full(source, labels=target).loss.isfinite()
    mean = open_with(tmp_path, memory_projection="mean").config
    assert (mean.memory_projection, mean.memory_sharing, mean.decoder.window) == ("mean", "headwise", 3)
    with pytest.raises(ValueError, match=r"^memory_k must lie between 1 and .* = 29, got 30$"):
        open_with(tmp_path, memory_k=30)


def test_what_a_model_cannot_read_is_refused(make, source, target):
    model = make()
    with pytest.raises(ValueError, match="give decoder_input_ids, decoder_inputs_embeds or labels"):
        model(source)
    with pytest.raises(ValueError, match="give exactly one of input_ids and inputs_embeds"):
        model(labels=target)
    with pytest.raises(
        ValueError, match="give encoder_hidden_states, or past_key_values of a call that was given them"
    ):
        model.decoder(target)
    encoded = model.encoder(source)
    with pytest.raises(ValueError, match=r"mask of the source must have shape \(B, M\) = \(3, 11\), got \(3, 10\)"):
        model(attention_mask=torch.ones(3, 10), encoder_outputs=encoded, labels=target)
    with pytest.raises(ValueError, match=r"attention_mask must have shape \(B, N\) = \(3, 9\), got \(3, 4\)"):
        model(source, decoder_input_ids=target, decoder_attention_mask=torch.ones(3, 4))
    with pytest.raises(ValueError, match="cache_implementation='static': Linformer has one cache"):
        model.generate(source, max_new_tokens=2, cache_implementation="static")
    with pytest.raises(ValueError, match="memory_k must be one number, got"):
        make(memory_k=[1, 2, 3], memory_sharing="layerwise")
