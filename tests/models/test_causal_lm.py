"""The causal language model: the loss, the cache, and everything that ``generate`` does with them."""

import pytest
import torch
from tokenizers import Tokenizer, models
from tokenizers.pre_tokenizers import Whitespace
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import DynamicCache, PreTrainedTokenizerFast, TextStreamer, pipeline

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.models import LinformerCache, LinformerForCausalLM, LinformerForMaskedLM, LinformerModel
from torch_linformer.models.arguments import CACHE

POSITIONS = ("rotary", "learned", "sinusoidal", "none")
KINDS = pytest.mark.parametrize(
    "kind",
    [{}, {"window": None}, {"k": 0}, {"attention": "full"}, {"num_key_value_heads": 1, "exact_first": 2}],
    ids=["slots+window", "slots", "window", "full", "multi-query+first-tokens"],
)
GREEDY = {"do_sample": False, "max_new_tokens": 9}


@pytest.fixture(scope="module")
def causal(build):
    """A function: a causal model that ends nowhere by itself and has something to say."""

    def build_causal(**fields):
        return build(LinformerForCausalLM, **{"position_embedding": "rotary", "num_attention_heads": 3, **fields})

    return build_causal


@pytest.fixture(scope="module")
def words():
    """A tokenizer of single words."""
    vocabulary = {"<pad>": 0, **{f"w{number}": number for number in range(1, 37)}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    tokenizer.pre_tokenizer = Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="<pad>", padding_side="left")


@pytest.fixture(scope="module")
def prompts(token_ids):
    """Two rows of 8 and 5 tokens, padded on the left, with their mask."""
    ids, mask = token_ids(2, 8, high=36) + 1, torch.ones(2, 8, dtype=torch.long)
    ids[1, :3], mask[1, :3] = 0, 0
    return ids, mask


def test_the_loss_is_that_of_the_next_token(causal, token_ids):
    model, ids = causal(), token_ids(3, 11)
    labels = ids.clone()
    labels[0, 4:7] = -100
    outputs = model(ids, labels=labels)
    nats = [
        -torch.log_softmax(outputs.logits[row, place], -1)[ids[row, place + 1]]
        for row in range(3)
        for place in range(10)
        if labels[row, place + 1] != -100
    ]
    assert_close(outputs.loss.double(), torch.stack(nats).mean(), rtol=1e-6, atol=0)


@KINDS
def test_no_score_depends_on_a_later_token(causal, token_ids, kind):
    model, ids = causal(**kind), token_ids(2, 11)
    embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
    scores = model(inputs_embeds=embeds).logits[:, 6]
    (gradient,) = torch.autograd.grad(scores.square().sum(), embeds)
    assert not gradient[:, 7:].any() and gradient[:, :7].any(-1).all()


@pytest.mark.parametrize("positions", POSITIONS)
@KINDS
@torch.no_grad()
def test_pieces_and_single_tokens_give_what_the_whole_gives(causal, token_ids, kind, positions):
    model, ids = causal(position_embedding=positions, **kind), token_ids(2, 13)
    whole = model(ids).logits
    cache, parts = None, []
    for begin, end in ((0, 5), (5, 6), (6, 11), (11, 12), (12, 13)):
        outputs = model(ids[:, begin:end], past_key_values=cache, use_cache=True)
        cache = outputs.past_key_values
        parts.append(outputs.logits)
    assert_close(torch.cat(parts, dim=1), whole)
    assert cache.get_seq_length() == 13


@pytest.mark.parametrize("side", ["left", "right", "middle"])
@KINDS
@torch.no_grad()
def test_a_padded_prompt_is_gone_on_from_as_the_row_alone(causal, token_ids, kind, side):
    model, row, new = causal(**kind), token_ids(1, 8), token_ids(1, 3, high=30)
    places = {"left": range(4, 12), "right": range(8), "middle": [0, 1, 4, 5, 6, 9, 10, 11]}[side]
    padded, mask = torch.full((1, 12), 5), torch.zeros(1, 12, dtype=torch.long)
    padded[0, list(places)], mask[0, list(places)] = row[0], 1
    cache = LinformerCache(2)
    prompt = model(padded, attention_mask=mask, past_key_values=cache).logits
    expected = model(torch.cat([row, new], dim=1)).logits
    assert_close(prompt[:, list(places)], expected[:, :8])
    mask = torch.cat([mask, torch.ones(1, 3, dtype=torch.long)], dim=1)
    assert_close(model(new, attention_mask=mask, past_key_values=cache).logits, expected[:, 8:])


@KINDS
@torch.no_grad()
def test_generate_with_and_without_the_cache(causal, prompts, kind):
    model, (ids, mask) = causal(**kind), prompts
    for options in (GREEDY, {"num_beams": 3, "max_new_tokens": 7}, {**GREEDY, "prefill_chunk_size": 3}):
        found = model.generate(ids, attention_mask=mask, **options)
        without = {name: value for name, value in options.items() if name != "prefill_chunk_size"}
        assert torch.equal(found, model.generate(ids, attention_mask=mask, use_cache=False, **without))


@torch.no_grad()
def test_a_left_padded_batch_generates_what_each_row_does(causal, prompts):
    model, (ids, mask) = causal(), prompts
    together = model.generate(ids, attention_mask=mask, **GREEDY)[:, 8:]
    assert torch.equal(together[:1], model.generate(ids[:1], **GREEDY)[:, 8:])
    assert torch.equal(together[1:], model.generate(ids[1:, 3:], **GREEDY)[:, 5:])


@torch.no_grad()
def test_samples_follow_the_seed_and_differ(causal, prompts):
    model, (ids, mask) = causal(), prompts
    draws = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        draws.append(model.generate(ids, attention_mask=mask, do_sample=True, num_return_sequences=3, max_new_tokens=9))
    assert draws[0].shape == (6, 17)
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])
    assert len({tuple(row) for row in draws[0][:3].tolist()}) > 1


@torch.no_grad()
def test_generation_goes_on_from_a_cache_that_was_kept(causal, token_ids):
    model, ids = causal(), token_ids(1, 8)
    first = model.generate(ids, return_dict_in_generate=True, **GREEDY)
    more = model.generate(first.sequences, **{CACHE: first[CACHE]}, **GREEDY)
    assert torch.equal(more, model.generate(ids, do_sample=False, max_new_tokens=18))


@torch.no_grad()
def test_a_cache_may_be_given_by_its_name_in_transformers_5_24(causal, token_ids):
    model, ids, known, named = causal(), token_ids(1, 8), LinformerCache(2), LinformerCache(2)
    for _ in range(2):  # the second time goes on
        assert torch.equal(model(ids, cache=named).logits, model(ids, past_key_values=known).logits)
    with pytest.raises(TypeError, match="unexpected keyword argument 'cache'"):
        model(ids, cache=named, past_key_values=known)


@torch.no_grad()
def test_the_cache_does_not_grow_but_that_of_full_attention_does(causal, token_ids):
    sizes = {}
    for attention in ("linformer", "full"):
        model, cache = causal(attention=attention), LinformerCache(2)
        sizes[attention] = []
        for length in (3, 20, 200):
            model(token_ids(1, length), past_key_values=cache)
            sizes[attention].append(cache.nbytes)
    assert len(set(sizes["linformer"])) == 1
    assert sizes["full"][0] < sizes["full"][1] < sizes["full"][2]


@torch.no_grad()
def test_no_input_is_too_long_unless_positions_are_learned(causal, token_ids):
    ids = token_ids(1, 40)  # the configuration says 29
    for positions in ("rotary", "sinusoidal", "none"):
        assert causal(position_embedding=positions)(ids).logits.isfinite().all()
    learned, cache = causal(position_embedding="learned"), LinformerCache(2)
    with pytest.raises(ValueError, match="the sequence has 40 positions but max_len is 29"):
        learned(ids)
    learned(ids[:, :20], past_key_values=cache)
    with pytest.raises(ValueError, match="the sequence has 30 positions but max_len is 29"):
        learned(ids[:, 20:30], past_key_values=cache)


@torch.no_grad()
def test_only_the_logits_that_are_asked_for(causal, token_ids):
    model, ids = causal(), token_ids(2, 11)
    whole = model(ids).logits
    assert_close(model(ids, logits_to_keep=2).logits, whole[:, -2:])
    assert_close(model(ids, logits_to_keep=torch.tensor([0, 7])).logits, whole[:, [0, 7]])


@torch.no_grad()
def test_inference_in_chunks_gives_the_same_and_the_same_cache(causal, token_ids):
    model, ids = causal(norm_first=True), token_ids(2, 13)
    whole = model(ids[:, :12])
    model = causal(norm_first=True, chunk_size=5)
    chunked = model(ids[:, :12])
    assert_close(chunked.logits, whole.logits)
    ends = [model(ids[:, 12:], past_key_values=outputs.past_key_values).logits for outputs in (whole, chunked)]
    assert_close(*ends)


def test_when_a_cache_is_returned(enable_checkpointing, causal, token_ids):
    model, ids = causal(), token_ids(1, 5)
    assert isinstance(model(ids).past_key_values, LinformerCache)
    assert model(ids, use_cache=False).past_key_values is None
    assert model.train()(ids).past_key_values is None
    assert isinstance(model(ids, use_cache=True).past_key_values, LinformerCache)
    enable_checkpointing(model)
    assert model(ids, use_cache=True).past_key_values is None
    with pytest.raises(ValueError, match="past_key_values with gradient checkpointing"):
        model(ids, past_key_values=LinformerCache(2))


@torch.no_grad()
def test_rows_of_a_cache_can_be_chosen_and_repeated(causal, token_ids):
    model, ids = causal(), token_ids(3, 6)
    for change, rows in (
        (lambda cache: cache.batch_select_indices(torch.tensor([2, 0])), [2, 0]),
        (lambda cache: cache.reorder_cache(torch.tensor([1, 1, 0])), [1, 1, 0]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
    ):
        cache = LinformerCache(2)
        model(ids[:, :5], past_key_values=cache)
        change(cache)
        assert_close(model(ids[rows, 5:], past_key_values=cache).logits, model(ids[rows]).logits[:, 5:])
    cache.reset()
    assert cache.get_seq_length() == 0 and cache.nbytes == 0
    assert_close(model(ids, past_key_values=cache).logits, model(ids).logits)


def test_what_a_cache_of_sums_cannot_do(causal, token_ids):
    model, ids = causal(), token_ids(1, 5)
    cache = model(ids).past_key_values
    cache.crop(0)
    with pytest.raises(NotImplementedError, match="cannot forget its last 2 tokens"):
        cache.crop(2)
    with pytest.raises(NotImplementedError, match="pass the cache to the model"):
        cache.update(torch.ones(1), torch.ones(1), 0)
    with pytest.raises(ValueError, match="assisted generation is not supported with stateful models"):
        model.generate(ids, assistant_model=causal(), max_new_tokens=3)
    with pytest.raises(ValueError, match="Linformer has one cache, whose size does not grow"):
        model.generate(ids, cache_implementation="static", max_new_tokens=3)
    with pytest.raises(ValueError, match="past_key_values must be a LinformerCache, got DynamicCache"):
        model(ids, past_key_values=DynamicCache())


def test_models_that_are_not_causal(build, tiny, token_ids):
    with pytest.raises(ValueError, match=r"LinformerForCausalLM needs a causal model: LinformerConfig\(causal=True"):
        LinformerForCausalLM(tiny())
    with pytest.raises(ValueError, match="past_key_values needs a causal model"):
        build(LinformerModel)(token_ids(1, 5), past_key_values=LinformerCache(2))
    assert build(LinformerModel)(token_ids(1, 5), use_cache=True).past_key_values is None


@torch.no_grad()
def test_a_local_window_in_a_model_that_sees_both_ways(build, token_ids):
    model, ids = build(LinformerForMaskedLM, window=4), token_ids(2, 20)
    padded, mask = F.pad(ids, (6, 0), value=5), F.pad(torch.ones_like(ids), (6, 0))
    assert_close(model(padded, attention_mask=mask).logits[:, 6:], model(ids).logits)
    assert not torch.allclose(model(ids).logits, build(LinformerForMaskedLM)(ids).logits)


def test_the_first_weights_are_those_of_the_modules(tiny):
    model = LinformerForCausalLM(tiny(causal=True, window=5, max_position_embeddings=512))
    running = model.linformer.encoder.layers[0].self_attn.context.running
    assert_close(running.log_time.exp()[:, [0, -1]], torch.tensor([[16.0, 512.0]] * 3))
    assert torch.equal(running.score_bias, torch.full((3, 7), -2.0))
    assert 0.3 < running.address.std() * 5**0.5 < 1.7


def test_a_streamer_says_what_generate_returns(causal, words, capsys):
    model = causal()
    ids = words("w3 w4 w5", return_tensors="pt").input_ids
    found = model.generate(ids, streamer=TextStreamer(words, skip_prompt=True), **GREEDY)
    assert capsys.readouterr().out.split() == words.decode(found[0, 3:]).split()


def test_strings_stop_and_the_last_token_of_a_prompt_is_healed(causal):
    tokenizer = build_tokenizer("bytes", [], max_length=64, goes_on=True)
    model = causal(dtype=torch.float32, vocab_size=len(tokenizer))
    letters = tokenizer("abcdefghijklmnopqrstuvwxyz", add_special_tokens=False).input_ids
    options = {**GREEDY, "suppress_tokens": sorted({*range(len(tokenizer))} - {*letters})}
    ids = tokenizer("wet", return_tensors="pt").input_ids
    plain = model.generate(ids, **options)
    stop = tokenizer.decode(plain[0, 4:6])
    stopped = model.generate(ids, stop_strings=[stop], tokenizer=tokenizer, **options)
    assert torch.equal(stopped, plain[:, :6])
    generator = pipeline("text-generation", model=model, tokenizer=tokenizer, device=model.device)
    (found,) = generator("wet", stop_sequence=stop, return_full_text=False, **options)
    assert found["generated_text"] == stop
    healed = model.generate(ids, token_healing=True, tokenizer=tokenizer, **options)
    assert torch.equal(healed[:, 1:4], ids[:, 1:]) and healed.shape == plain.shape


def test_the_text_generation_pipeline(causal, words):
    model = causal(dtype=torch.float32)
    generator = pipeline("text-generation", model=model, tokenizer=words, device=model.device)
    found = generator(["w3 w4 w5", "w7"], batch_size=2, return_full_text=False, **GREEDY)
    alone = model.generate(words("w7", return_tensors="pt").input_ids, **GREEDY)
    assert found[1][0]["generated_text"].split() == words.decode(alone[0, 1:]).split()
