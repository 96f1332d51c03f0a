import random
import re

import pytest
import torch
from tokenizers import processors

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.errors import InputError
from torch_linformer.inference.generate import Choice, TextStream, generate, load_causal_model
from torch_linformer.models import LinformerConfig, LinformerForCausalLM
from torch_linformer.opening.load import load_tokenizer

CLS, SEP = 1, 2


@pytest.fixture(scope="module")
def trained(clm_run):
    path = str(clm_run.folder)
    return load_causal_model(path, "cpu"), load_tokenizer(path)


@pytest.fixture(scope="module")
def byte_tokens():
    return build_tokenizer("bytes", [], max_length=16, goes_on=True)


def pieces_of(trained, prompt, **options):
    """What is written, piece by piece."""
    pieces = []
    generate(*trained, prompt, Choice(**{"max_new_tokens": 12, **options}), pieces.append)
    return pieces


# Generating


def test_the_likeliest_text_is_what_the_model_says_token_by_token(trained):
    model, tokenizer = trained
    ids = [CLS, *tokenizer("wet grey", add_special_tokens=False)["input_ids"]]
    prompt = len(ids)
    for _ in range(12):
        with torch.no_grad():
            scores = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
        scores[[token for token in tokenizer.all_special_ids if token != SEP]] = -torch.inf
        ids.append(int(scores.argmax()))
        if ids[-1] == SEP:
            break
    expected = tokenizer.decode(ids[prompt:], skip_special_tokens=True)
    assert "".join(pieces_of(trained, "wet grey", temperature=0)) == expected


def test_draws_follow_the_seed_and_come_piece_by_piece(trained):
    one, again = (pieces_of(trained, "the", seed=5, max_new_tokens=30) for _ in range(2))
    assert one == again and len(one) > 3
    assert "".join(one) != "".join(pieces_of(trained, "the", seed=6, max_new_tokens=30))
    narrow = {"".join(pieces_of(trained, "the", seed=seed, top_k=1)) for seed in range(3)}
    assert narrow == {"".join(pieces_of(trained, "the", temperature=0))}
    assert narrow == {"".join(pieces_of(trained, "the", seed=seed, top_p=1e-6)) for seed in range(3)}


def test_beams_write_at_once_what_is_at_least_as_likely(trained):
    pieces = pieces_of(trained, "the", num_beams=3)
    assert len(pieces) == 1


@pytest.mark.parametrize("prompt", ["", "naïve sand of the sea " * 30, "<sep> is text"])
def test_a_prompt_may_be_empty_long_or_spell_a_special_token(trained, prompt):
    assert pieces_of(trained, prompt, seed=0)


def test_the_end_token_ends_it_and_no_other_special_token_comes(trained, monkeypatch):
    model, tokenizer = trained
    biased = LinformerForCausalLM(model.config)
    biased.load_state_dict(model.state_dict())
    seen = []

    def forward(self, *args, **kwargs):
        outputs = original(self, *args, **kwargs)
        outputs.logits[..., [0, CLS, 3]] = 1e4
        outputs.logits[..., SEP] = 1e3 if len(seen) == 3 else -1e3
        seen.append(1)
        return outputs

    original = LinformerForCausalLM.forward
    monkeypatch.setattr(LinformerForCausalLM, "forward", forward)
    assert len(pieces_of((biased, tokenizer), "wet", temperature=0, max_new_tokens=50)) <= 3
    assert len(seen) == 4


def test_an_empty_prompt_without_a_start_token(trained):
    tokenizer = build_tokenizer("bytes", [], max_length=16)
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel()  # adds no token
    with pytest.raises(InputError, match=r"^an empty prompt needs a start token, which this tokenizer lacks; give a"):
        generate(trained[0], tokenizer, "", Choice(), print)


def test_more_than_learned_positions_allow(byte_tokens):
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = LinformerConfig(
        vocab_size=260, max_position_embeddings=20, causal=True, k=2, type_vocab_size=0, eos_token_id=SEP, **sizes
    )
    model = LinformerForCausalLM(config)
    with pytest.raises(InputError, match=r"^the prompt's 12 tokens and --max-new-tokens 9 are more than the 20 that"):
        generate(model, byte_tokens, "a" * 11, Choice(max_new_tokens=9), print)
    generate(model, byte_tokens, "a" * 11, Choice(max_new_tokens=8, temperature=0), lambda piece: None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 0}, "--max-new-tokens must be at least 1, got 0"),
        ({"top_k": 0}, "--top-k must be at least 1, got 0"),
        ({"num_beams": -1}, "--num-beams must be at least 1, got -1"),
        ({"temperature": -1.0}, "--temperature must be 0, or a number from 0.001 on, got -1.0"),
        ({"temperature": 1e-9}, "--temperature must be 0, or a number from 0.001 on, got 1e-09"),
        ({"temperature": float("nan")}, "--temperature must be 0, or a number from 0.001 on, got nan"),
        ({"temperature": float("inf")}, "--temperature must be 0, or a number from 0.001 on, got inf"),
        ({"top_p": 0.0}, "--top-p must be above 0 and at most 1, got 0.0"),
        ({"top_p": float("nan")}, "--top-p must be above 0 and at most 1, got nan"),
        ({"seed": -1}, "--seed must be at least 0 and below 2^32, got -1"),
        ({"temperature": 0.0, "top_k": 3}, "--top-k is for drawing tokens, but --temperature 0 takes the likeliest"),
        ({"num_beams": 2, "temperature": 1.0}, "--temperature is for drawing tokens, but --num-beams searches"),
    ],
)
def test_choices_that_cannot_be(options, message):
    with pytest.raises(InputError) as raised:
        Choice(**options)
    assert str(raised.value).startswith(message)


def test_a_model_that_does_not_go_on(masked_run):
    message = f"{masked_run.folder}: a LinformerForMaskedLM does not continue a text; train a model with --task clm"
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        load_causal_model(str(masked_run.folder), "cpu")


# Showing


def streamed(tokenizer, ids, skip=0):
    pieces = []
    stream = TextStream(tokenizer, pieces.append, skip=skip)
    for token in ids:
        stream.put(torch.tensor([token]))
    stream.end()
    return pieces


def test_characters_of_several_tokens_are_written_whole(byte_tokens):
    text = "a naïve 😀, " * 20
    ids = byte_tokens(text, add_special_tokens=False)["input_ids"]
    pieces = streamed(byte_tokens, ids)
    assert "".join(pieces) == text
    assert pieces == list(text)  # as soon as it is whole


def test_bytes_that_are_no_text_are_replaced_and_nothing_waits_for_ever(byte_tokens):
    draw = random.Random(0)
    for _ in range(20):
        ids = [draw.randrange(4, 260) for _ in range(80)]
        assert "".join(streamed(byte_tokens, ids)) == byte_tokens.decode(ids)
    (first,) = byte_tokens("é", add_special_tokens=False)["input_ids"][:1]
    assert streamed(byte_tokens, [first]) == ["�"]  # the end of it all


def test_the_prompt_is_skipped_and_special_tokens_are_not_shown(byte_tokens):
    ids = byte_tokens("wet mud", add_special_tokens=False)["input_ids"]
    pieces = []
    stream = TextStream(byte_tokens, pieces.append, skip=4)
    stream.put(torch.tensor([[CLS, *ids[:3]]]))
    for token in [*ids[3:], SEP]:
        stream.put(torch.tensor([token]))
    stream.end()
    assert "".join(pieces) == " mud"
