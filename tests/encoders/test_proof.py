"""A linear copy is the original where rows are read exactly, whatever was done to it; what cannot be is refused."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import transformers
from encoders.families import (
    OTHERS,
    SIZES,
    TEXTS,
    VOCABULARY,
    base_class,
    hidden,
    inputs_of,
    linear,
    original,
    random_model,
)
from torch import nn
from torch.testing import assert_close
from transformers import AutoModel
from transformers.models.aimv2.modeling_aimv2 import Aimv2TextModel

from torch_linformer.encoders import linearize
from torch_linformer.encoders.proof import prove

LENGTH = 29
CLOSE = {"rtol": 0, "atol": 1e-5}
SMALL = {**SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 50}
SEQ2SEQ = {"d_model": 24, "encoder_layers": 1, "encoder_attention_heads": 3, "encoder_ffn_dim": 20, "init_std": 0.3}
SEQ2SEQ |= {"decoder_layers": 1, "decoder_attention_heads": 3, "decoder_ffn_dim": 4, "vocab_size": VOCABULARY}
SEQ2SEQ |= {"max_position_embeddings": 50, "pad_token_id": 1, "decoder_start_token_id": 2, "eos_token_id": 2}
WIDTH = {"hidden_size": 24, "intermediate_size": 20, "num_hidden_layers": 1, "num_attention_heads": 3, "head_dim": 8}
WIDTH |= {"num_key_value_heads": 3, "vocab_size": VOCABULARY, "sliding_window": 5}
WIDTH |= {"layer_types": ["sliding_attention"], "attn_logit_softcapping": None}
BERT, VIT = TEXTS[0], OTHERS[0]


def texts(rows=2, length=LENGTH):
    ids = torch.randint(5, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1:, 2 * length // 3 :] = 0
    return {"input_ids": ids, "attention_mask": mask}


def assert_same(model, **options):
    """The copy reads short rows as ``model`` does, and not those of slots."""
    batch = texts()
    real = batch["attention_mask"] == 1
    expected = hidden(model, **batch)
    made = linearize(model, k=4, window=6, exact_below=LENGTH, **options)
    assert_close(hidden(made, **batch)[real], expected[real], **CLOSE)
    far = hidden(linearize(model, k=4, window=2, exact_below=0, **options), **batch)
    assert far[real].isfinite().all()
    return made, far[real], expected[real]


def t5gemma(**fields):
    encoder = {**WIDTH, **fields}
    config = transformers.T5GemmaConfig(encoder=encoder, decoder=encoder, is_encoder_decoder=False, vocab_size=37)
    return random_model(transformers.T5GemmaEncoderModel, config)


@torch.no_grad()
def test_a_model_that_was_changed_by_hand():
    """After it was built, in what no configuration knows."""
    model = copy.deepcopy(original(BERT))
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.eps = 0.5
    _, far, expected = assert_same(model)
    assert (far - expected).abs().max() > 1e-3


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_model_of_two_dtypes_keeps_them(dtype):
    model = copy.deepcopy(original(BERT)).to(dtype)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.float()
            module.register_forward_hook(lambda module, args, output: output.to(dtype))
            module.register_forward_pre_hook(lambda module, args: (args[0].float(),))
    made = linearize(model, k=4, window=6)
    dtypes = {name: x.dtype for name, x in model.named_parameters()}
    assert {name: x.dtype for name, x in made.named_parameters() if ".linformer." not in name} == dtypes
    assert {x.dtype for name, x in made.named_parameters() if ".linformer." in name} == {dtype}


def test_causal_by_its_mask_alone():
    """No flag of the model says so."""
    sizes = {**SMALL, "eos_token_id": 2}
    model = random_model(Aimv2TextModel, transformers.Aimv2TextConfig(**sizes))
    with pytest.raises(ValueError, match=r"Aimv2TextModel \(aimv2_text_model\): Aimv2Attention is causal: its tokens"):
        linearize(model, k=4)


@torch.no_grad()
def test_a_window_is_as_wide_as_the_mask_says():
    """T5Gemma counts the tokens on one side, where ModernBERT counts one more; far away is what a token cannot see."""
    model = t5gemma()
    made, _, _ = assert_same(model)
    ids = texts()["input_ids"][:1]
    changed = ids.clone()
    changed[0, 14] = 3
    for encoder in (model, made):
        seen = (hidden(encoder, input_ids=changed) - hidden(encoder, input_ids=ids)).abs().amax(-1)[0] > 1e-9
        assert seen.nonzero()[:, 0].tolist() == list(range(9, 20))


@torch.no_grad()
def test_a_window_of_the_token_alone():
    fields = {**TEXTS[-1].fields, "local_attention": 1}
    model = random_model(transformers.ModernBertModel, transformers.ModernBertConfig(**fields))
    made, _, _ = assert_same(model)
    assert made.layers[1].attn.linformer.window == 1


def test_scores_that_are_capped():
    with pytest.raises(ValueError, match=r"T5GemmaEncoderModel \(.*: softcap cannot be applied to slots") as error:
        linearize(t5gemma(attn_logit_softcapping=5.0), k=4)
    assert "\n" not in str(error.value)


@torch.no_grad()
@pytest.mark.parametrize("name", ["LayoutLM", "MarkupLM"])
def test_masks_that_a_model_makes_itself(name):
    """Of shape (B, 1, 1, N): they are only padding."""
    config = getattr(transformers, f"{name}Config")(**SMALL, pad_token_id=0)
    assert_same(random_model(getattr(transformers, f"{name}Model"), config))


@torch.no_grad()
@pytest.mark.parametrize("name", ["Bart", "MBart", "Marian", "Pegasus", "M2M100", "SiglipText", "Bert", "Roberta"])
def test_longer_texts(name, tmp_path):
    """Tables of positions are found by their use, learned or computed; a folder has them too."""
    if name in ("Bert", "Roberta", "SiglipText"):
        fields = {**SMALL, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
        model = random_model(
            getattr(transformers, f"{name}Model"), getattr(transformers, f"{name}Config")(**fields), torch.float32
        )
    else:
        config = getattr(transformers, f"{name}Config")(**SEQ2SEQ)
        model = random_model(getattr(transformers, f"{name}Model"), config, torch.float32).get_encoder()
        table = getattr(model.embed_positions, "weight", None)
        if name in ("Marian", "Pegasus"):  # computed, not learned: as a folder of theirs is opened
            fresh = type(model)(config).embed_positions.weight
            table.copy_(fresh)
    long = {"input_ids": texts(length=120)["input_ids"]}
    made = linearize(model, k=4, window=6, max_length=120).eval()
    output = hidden(made, **long)
    made.save_pretrained(tmp_path)
    assert_close(hidden(AutoModel.from_pretrained(tmp_path).eval(), **long), output, **CLOSE)
    short = {"input_ids": long["input_ids"][:, :40]}
    exact = linearize(model, k=4, window=6, max_length=120, exact_below=40)
    assert_close(hidden(exact, **short), hidden(model, **short), **CLOSE)
    with pytest.raises(ValueError, match="the input has 121 positions and this encoder reads 120: cut it, or make"):
        made(input_ids=texts(length=121)["input_ids"])


@pytest.mark.parametrize("family", TEXTS, ids=repr)
def test_one_token_too_many(family):
    with pytest.raises(ValueError, match="the input has 51 positions and this encoder reads 50: cut it, or make the"):
        linear(original(family), max_length=50)(**inputs_of(family, length=51))


def test_the_layer_where_they_part_is_named():
    whole = original(BERT)
    made = linear(whole)
    with torch.no_grad():
        made.encoder.layer[1].output.dense.weight *= 1.01
    with pytest.raises(ValueError, match=r"differs from it by .*, first in encoder\.layer\.1\.output\.dense: it att"):
        prove(whole, made)


def test_a_layer_that_attends_otherwise():
    """Its configuration is another object than the model's, and asks for another attention."""
    whole = original(VIT)
    made = linear(whole)
    attention = made.layers[1].attention
    attention.config = copy.deepcopy(whole.config)
    with pytest.raises(
        ValueError, match=r"layers\.1\.attention\.linformer is not what this model attends by: it cannot"
    ):
        prove(whole, made)


def test_configurations_of_single_layers_are_followed():
    model = copy.deepcopy(original(BERT))
    for layer in model.encoder.layer:
        layer.attention.self.config = copy.deepcopy(model.config)
    assert_same(model)


def test_what_is_on_the_meta_device():
    with torch.device("meta"):
        model = base_class(BERT)(BERT.config)
    with pytest.raises(ValueError, match="is on the meta device, or offloaded, and cannot be compared with its cop"):
        linearize(model)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("RoFormer", "leave it out, or take another encoder"),
        ("MegatronBert", "leave it out, or take another encoder"),
        ("MPNet", "make it linear by torch_linformer.linearize"),
    ],
)
def test_a_model_that_never_looks_up_its_attention(name, said):
    config = getattr(transformers, f"{name}Config")(**SMALL)
    with pytest.raises(ValueError, match=f"'linformer' has no effect on {name}Model, whose attention .*: {said}"):
        AutoModel.from_config(config, attn_implementation="linformer")


def test_a_mask_of_pairs_for_each_row():
    mask = torch.ones(2, LENGTH, LENGTH)
    with pytest.raises(
        ValueError, match=r"attention_mask must be \(B, N\), 0 at padding, got \(2, 29, 29\): a mask of"
    ):
        linear(original(BERT))(**inputs_of(BERT), attention_mask=mask)


def test_threads_make_their_encoders_at_the_same_time():
    """Of one model, which another thread uses meanwhile, and of others."""
    whole, other = copy.deepcopy(original(BERT)).train(), original(TEXTS[4])
    with ThreadPoolExecutor(6) as pool:
        made = list(pool.map(lambda model: linear(model, exact_below=LENGTH), [whole, other] * 3))
    inputs = inputs_of(BERT)
    for model, copies in ((whole, made[::2]), (other, made[1::2])):
        expected = hidden(copies[0].eval(), **inputs)
        assert all(torch.equal(hidden(x.eval(), **inputs), expected) for x in copies)
        assert model.config._attn_implementation == "sdpa"
    assert all(x.training for x in whole.modules())


def test_the_original_attends_as_ever_meanwhile():
    model = copy.deepcopy(original(BERT))
    seen = set()
    model.encoder.register_forward_pre_hook(lambda *args: seen.add(model.config._attn_implementation))
    linear(model)
    assert seen == {"sdpa"}


@pytest.mark.parametrize(
    "surroundings",
    [torch.inference_mode, lambda: torch.device("meta"), lambda: torch.autocast("cpu", torch.bfloat16)],
    ids=["inference_mode", "meta", "autocast"],
)
def test_surroundings(surroundings):
    """The copy can be trained, whatever was going on where it was made."""
    model = random_model(base_class(BERT), BERT.config, torch.float32)
    with surroundings():
        made = linearize(model, k=7, window=6, max_length=70)
    assert not any(x.is_inference() or x.is_meta for x in (*made.parameters(), *made.buffers()))
    hidden(made, **inputs_of(BERT)).sum().backward()


def test_what_cannot_be_copied():
    model = copy.deepcopy(original(BERT))
    model.lock = threading.Lock()
    with pytest.raises(
        ValueError, match=r"BertModel \(bert\): it cannot be copied \(TypeError: .*\): take away what"
    ) as error:
        linearize(model)
    assert "\n" not in str(error.value)


def test_weights_that_are_not_finite():
    model = copy.deepcopy(original(BERT))
    with torch.no_grad():
        model.encoder.layer[1].output.dense.weight[0, 0] = float("nan")
    with pytest.raises(
        ValueError, match=r"BertModel \(bert\): the output for a small made-up input is not finite: some"
    ):
        linearize(model)


def test_an_image_of_more_patches_than_the_length():
    with pytest.raises(ValueError, match="the input has 26 positions and this encoder reads 20: cut it, or make the"):
        linearize(original(VIT), k=4, max_length=20)
    sound = OTHERS[4]
    assert linearize(original(sound), k=4, max_length=20).config.longest_input == 20  # of any number of positions


class OwnBert(transformers.BertModel):
    """A class that a user has."""


class OwnPart(transformers.models.bart.modeling_bart.BartEncoder):
    """The encoder of an encoder-decoder, under another name."""


@torch.no_grad()
def test_a_class_of_the_users_own(tmp_path):
    made = linear(random_model(OwnBert, BERT.config))
    made.save_pretrained(tmp_path)
    opened = AutoModel.from_pretrained(tmp_path)
    assert type(opened) is type(made)
    assert_close(hidden(opened, **inputs_of(BERT)), hidden(made, **inputs_of(BERT)))
    assert_same(random_model(OwnPart, transformers.BartConfig(**SEQ2SEQ)))
