import math

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.errors import InputError
from torch_linformer.tasks.language_modeling import MASK_SHARE, MaskedLanguageModeling, MaskingCollator, token_bytes

PAD, CLS, SEP, MASK = range(4)
TEXTS = ["the cat sat on the mat", "the naïve cat", "a rat"] * 5


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer("bpe:290", TEXTS, max_length=32)


@pytest.fixture(scope="module")
def wordpiece():
    """A tokenizer of the WordPiece kind, as BERT has it."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "walk", "##ing", "naïve", "##x"]
    backend = Tokenizer(models.WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece()
    roles = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)


def example(document, length=4_000):
    """A long document of ordinary tokens between two special ones, the same for the same number."""
    ids = 4 + torch.arange(length - 2) % 250
    return {"input_ids": [CLS, *ids.tolist(), SEP], "document": document}


# Masks


def test_masks_follow_from_seed_epoch_and_document_alone(tokenizer):
    collator = MaskingCollator(tokenizer, seed=1, epoch=0)
    first = collator([example(7)])
    torch.rand(3)  # whatever was drawn elsewhere
    beside = MaskingCollator(tokenizer, seed=1, epoch=0)([example(3, 5_000), example(7)])
    assert torch.equal(beside["input_ids"][1, :4_000], first["input_ids"][0])
    assert torch.equal(beside["labels"][1, :4_000], first["labels"][0])
    collator.set_epoch(1)
    others = [
        collator([example(7)]),
        MaskingCollator(tokenizer, seed=2, epoch=0)([example(7)]),
        MaskingCollator(tokenizer, seed=1, epoch=0)([example(8)]),
    ]
    for other in others:
        # Two independent draws choose the same tokens as often as chance has it.
        both = ((other["labels"] != -100) & (first["labels"] != -100)).float().mean()
        assert both < 2 * MASK_SHARE**2
    collator.set_epoch(0)
    assert torch.equal(collator([example(7)])["labels"], first["labels"])


def test_shares_of_what_becomes_of_a_token(tokenizer):
    examples = [example(document) for document in range(20)]
    batch = MaskingCollator(tokenizer, seed=0, epoch=0)(examples)
    original = torch.tensor([each["input_ids"] for each in examples])
    chosen = batch["labels"] != -100
    assert torch.equal(batch["labels"][chosen], original[chosen])
    assert torch.equal(batch["input_ids"][~chosen], original[~chosen])
    seen = batch["input_ids"][chosen]
    shares = [
        chosen[:, 1:-1].float().mean(),
        (seen == MASK).float().mean(),
        (seen == original[chosen]).float().mean(),
        ((seen != MASK) & (seen != original[chosen])).float().mean(),
    ]
    assert torch.tensor(shares).tolist() == pytest.approx([0.15, 0.8, 0.1, 0.1], abs=0.01)  # 4 sigma and more


def test_special_tokens_are_neither_chosen_nor_drawn(tokenizer):
    collator = MaskingCollator(tokenizer, seed=0, epoch=0)
    batch = collator([{"input_ids": [CLS, PAD, MASK, SEP] * 500, "document": 0}])
    assert (batch["labels"] == -100).all()
    assert batch["input_ids"][0].tolist() == [CLS, PAD, MASK, SEP] * 500
    batch = collator([example(document) for document in range(10)])
    drawn = batch["input_ids"][(batch["labels"] != -100) & (batch["input_ids"] != batch["labels"])]
    assert set(drawn.tolist()) & {PAD, CLS, SEP} == set()
    assert len(set(drawn.tolist())) > 200  # from the whole vocabulary


@pytest.mark.parametrize("side", ["right", "left"])
def test_labels_stand_beside_their_tokens_on_either_padding_side(side):
    tokenizer = build_tokenizer("bytes", [], max_length=32)
    tokenizer.padding_side = side
    short, long = example(0, 50), example(1, 80)
    batch = MaskingCollator(tokenizer, seed=0, epoch=0)([short, long])
    place = slice(0, 50) if side == "right" else slice(30, 80)
    padding = torch.ones(80, dtype=torch.bool)
    padding[place] = False
    assert (batch["input_ids"][0, padding] == PAD).all() and (batch["attention_mask"][0] == ~padding).all()
    assert (batch["labels"][0, padding] == -100).all()
    chosen = batch["labels"][0, place] != -100
    original = torch.tensor(short["input_ids"])
    assert chosen.any() and torch.equal(batch["labels"][0, place][chosen], original[chosen])


def test_whole_words_are_masked_or_not(tokenizer):
    """Words of four tokens: each is chosen as a whole, as often as a token would be."""
    ids = 4 + torch.arange(4_000) % 250
    words = (torch.arange(4_000) // 4).tolist()
    examples = [
        {"input_ids": [CLS, *ids.tolist(), SEP], "words": [-1, *words, -1], "document": document}
        for document in range(5)
    ]
    chosen = MaskingCollator(tokenizer, seed=0, epoch=0)(examples)["labels"] != -100
    assert not chosen[:, [0, -1]].any()
    by_word = chosen[:, 1:-1].reshape(-1, 4)
    assert torch.equal(by_word.any(dim=1), by_word.all(dim=1))
    assert by_word[:, 0].float().mean() == pytest.approx(MASK_SHARE, abs=0.02)


def test_rows_are_packed_and_limited_as_told(tokenizer):
    documents = Dataset.from_dict({"text": TEXTS})
    encoder = DocumentEncoder(tokenizer, 24)
    packed = MaskedLanguageModeling(tokenizer, seed=5).examples(documents, encoder)
    alone = MaskedLanguageModeling(tokenizer, seed=5, packing=False, whole_words=True).examples(documents, encoder)
    assert len(packed.windows) < len(alone.windows) == len(TEXTS) == len(packed.num_tokens)
    assert "words" in alone.windows[0] and "words" not in packed.windows[0]
    assert len(MaskedLanguageModeling(tokenizer, seed=5).examples(documents, encoder, 3).windows) == 3


def test_validation_has_masks_of_its_own_that_do_not_change(tokenizer):
    task = MaskedLanguageModeling(tokenizer, seed=5)
    examples = [example(0)]
    validation = task.collator(training=False)(examples)
    assert torch.equal(task.collator(training=False)(examples)["labels"], validation["labels"])
    training = task.collator(training=True)
    for epoch in range(3):
        training.set_epoch(epoch)
        assert not torch.equal(training(examples)["labels"], validation["labels"])


def test_a_tokenizer_without_a_mask_token():
    backend = Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1}, unk_token="[UNK]"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", pad_token="[UNK]")
    with pytest.raises(InputError, match="--task mlm needs a tokenizer with a mask token: give another --tok"):
        MaskedLanguageModeling(tokenizer, seed=0)


# Scores of masked-language modeling


def test_scores_of_masked_language_modeling_by_hand(wordpiece):
    task = MaskedLanguageModeling(wordpiece, seed=0)
    walk, ing, naive = 5, 6, 7
    labels = torch.tensor([[-100, walk, naive], [ing, -100, -100]])
    probability = torch.full((2, 3, 9), 1 / 9)
    for place, target, p in (((0, 1), walk, 1 / 2), ((0, 2), naive, 1 / 4), ((1, 0), ing, 1 / 8)):
        probability[place] = (1 - p) / 8
        probability[(*place, target)] = p
    # Constant offsets of the logits change nothing.
    sums = task.reduce(probability.log() + 3.0, labels)
    assert sums.shape == (2, 3)
    assert sums[0].tolist() == pytest.approx([math.log(8), 2, 4 + 6])
    assert sums[1].tolist() == pytest.approx([math.log(8), 1, 3])
    scores = task.scores(task.answers(sums.numpy(), {}, {}), None)
    assert scores["perplexity"] == pytest.approx(4)  # the geometric mean of 2, 4 and 8
    assert scores["bits_per_byte"] == pytest.approx((1 + 2 + 3) / 13)
    assert not task.larger_is_better and task.best_metric in scores


def test_bytes_of_byte_level_tokens(tokenizer):
    sizes = token_bytes(tokenizer)
    assert sizes[:4].tolist() == [0, 0, 0, 0] and len(sizes) == len(tokenizer)
    for text in ("the cat sat on the mat", " naïve 😀\n\tcat", "é"):
        ids = tokenizer(text, add_special_tokens=False).input_ids
        assert sizes[ids].sum() == len(text.encode())
    (the,) = tokenizer(" the", add_special_tokens=False).input_ids
    assert sizes[the] == 4


def test_bytes_of_wordpiece_tokens(wordpiece):
    assert token_bytes(wordpiece).tolist() == [0, 0, 0, 0, 0, 4, 3, 6, 1]
