"""Words of documents: what scikit-learn counts in their texts, whichever tokenizer divides them."""

import random

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.preprocessing import normalize
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.words import words_of
from torch_linformer.models.lexical_head import BASE, CHARACTERS, KINDS, PRIME
from torch_linformer.tasks.word_features import GRAMS, PAIRS, WORDS, WordCounts

TEXT = "The quick Brown foxes' tails jump over unbelievable lazy-dogs, don't they? snake_case 42nd été"
CHOSEN = ["tail", "sand", "sea", "foxtail", "sandy", "seas", "mud", "iced", "cold"]


def tokenizer_of(kind, texts):
    special, unknown = ["<unk>"], {"unk_token": "<unk>"}
    made, trainer, decoder, before = {
        "wordpiece": lambda: (
            models.WordPiece(**unknown),
            trainers.WordPieceTrainer(vocab_size=150, special_tokens=special),
            decoders.WordPiece(),
            pre_tokenizers.BertPreTokenizer(),
        ),
        "bytes": lambda: (
            models.BPE(),
            trainers.BpeTrainer(vocab_size=320, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
            decoders.ByteLevel(),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ),
        "sentencepiece": lambda: (
            models.Unigram(),
            trainers.UnigramTrainer(vocab_size=120, special_tokens=special, **unknown),
            decoders.Metaspace(),
            pre_tokenizers.Sequence([pre_tokenizers.Punctuation(), pre_tokenizers.Metaspace()]),
        ),
        "suffix": lambda: (
            models.BPE(end_of_word_suffix="</w>", **unknown),
            trainers.BpeTrainer(vocab_size=150, special_tokens=special, end_of_word_suffix="</w>"),
            decoders.BPEDecoder(),
            pre_tokenizers.BertPreTokenizer(),
        ),
        "words": lambda: (
            models.WordLevel(**unknown),
            trainers.WordLevelTrainer(special_tokens=special),
            None,
            pre_tokenizers.BertPreTokenizer(),
        ),
    }[kind]()
    tokenizer = Tokenizer(made)
    tokenizer.pre_tokenizer = before
    if kind != "bytes":
        tokenizer.normalizer = normalizers.NFC()
    if decoder is not None:
        tokenizer.decoder = decoder
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token=None if kind == "bytes" else "<unk>")


def code_of(word):
    return sum(ord(letter) * pow(BASE, place, PRIME) for place, letter in enumerate(word)) % PRIME * KINDS


KINDS_OF_TOKENIZERS = ["wordpiece", "bytes", "sentencepiece", "suffix", "words"]


def ids_of(tokenizer, texts):
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


@pytest.mark.parametrize("kind", KINDS_OF_TOKENIZERS)
def test_words_are_those_of_the_text(kind):
    tokenizer = tokenizer_of(kind, [TEXT] * 3)
    counts = WordCounts(tokenizer, len(tokenizer) + 3, ids_of(tokenizer, [TEXT, "été quick"]), 2, characters=False)
    of_words = {code for code in counts.codes.tolist() if code % KINDS == 0}
    assert of_words == {code_of(word.lower()) for word in words_of(TEXT.replace("_", " "))}
    column = counts.codes.tolist().index(code_of("quick"))
    assert counts.counts[:, [column]].toarray().tolist() == [[1], [1]]


def test_case_and_division_make_no_difference():
    tokenizer = tokenizer_of("wordpiece", ["foxtail Fox tail"] * 3)
    counts = WordCounts(
        tokenizer, len(tokenizer), ids_of(tokenizer, ["foxtail", "Foxtail foxtail"]), 2, characters=False
    )
    assert counts.counts[:, counts.codes == code_of("foxtail")].toarray().tolist() == [[1], [2]]


def test_scripts_without_spaces_are_words_by_characters():
    tokenizer = tokenizer_of("sentencepiece", ["中文字符很好 word"] * 3)
    counts = WordCounts(tokenizer, len(tokenizer), ids_of(tokenizer, ["中文 word"]), 1, characters=False)
    pieces = [token for token in tokenizer.tokenize("中文 word") if any(ord(letter) > 0x3000 for letter in token)]
    of_words = {code for code in counts.codes.tolist() if code % KINDS == 0}
    assert {code_of(piece.replace("▁", "")) for piece in pieces} <= of_words and code_of("word") in of_words


@pytest.fixture(scope="module")
def texts():
    draw = random.Random(0)
    return [" ".join(draw.choices(CHOSEN, k=draw.randint(3, 12))) for _ in range(130)]


@pytest.mark.parametrize("kind", [WORDS, PAIRS, GRAMS])
def test_features_are_those_of_scikit_learn(texts, kind):
    tokenizer, known = tokenizer_of("wordpiece", texts), 110
    counts = WordCounts(tokenizer, len(tokenizer), ids_of(tokenizer, texts), known, characters=True)
    features = counts.features(kind, 2)
    expected = 0
    vectorizers = [TfidfVectorizer(ngram_range=(1, 1 if kind == WORDS else 2), sublinear_tf=True, min_df=2)]
    if kind == GRAMS:
        vectorizers.append(TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=2))
    for vectorizer in vectorizers:
        x = vectorizer.fit(texts[:known]).transform(texts)
        expected = expected + (x @ x.T).toarray()
    assert len(features.codes) == sum(len(vectorizer.vocabulary_) for vectorizer in vectorizers)
    np.testing.assert_allclose((features.x @ features.x.T).toarray(), expected, atol=1e-9)


@pytest.mark.parametrize("kind", [PAIRS, GRAMS])
@torch.no_grad()
def test_the_head_gives_what_the_features_give(texts, kind):
    tokenizer = tokenizer_of("bytes", texts)
    ids = ids_of(tokenizer, [*texts, "Unseen words; SAND"])
    counts = WordCounts(tokenizer, len(tokenizer), ids, len(texts), characters=True)
    features = counts.features(kind, 3)
    draw = np.random.default_rng(0)
    weight, bias = draw.normal(size=(3, len(features.codes))), draw.normal(size=3)
    head = counts.head(features, weight, bias)
    assert (head.letters is not None) == (kind == GRAMS)
    expected = features.x @ weight.T + bias
    for number in (0, 7, len(texts)):
        np.testing.assert_allclose(head(torch.tensor([ids[number]]))[0], expected[number], rtol=1e-4, atol=1e-5)
    longer = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids[number]) for number in (0, 7)], True, -1)
    np.testing.assert_allclose(head(longer), expected[[0, 7]], rtol=1e-4, atol=1e-5)


def test_what_one_of_many_documents_has_is_left_out_and_only_known_documents_count(texts):
    tokenizer = tokenizer_of("words", [*texts, "once only unknown"])
    ids = ids_of(tokenizer, [*texts, "once", "only only"])
    counts = WordCounts(tokenizer, len(tokenizer), ids, len(texts) + 1, characters=False)
    assert not {code_of("once"), code_of("only")} & set(counts.codes.tolist())
    few = WordCounts(tokenizer, len(tokenizer), ids[-2:], 1, characters=False)
    assert few.codes.tolist() == [code_of("once")] and few.counts.toarray().tolist() == [[1.0], [0.0]]


def test_the_most_usual_features_are_kept(texts, monkeypatch):
    monkeypatch.setattr("torch_linformer.tasks.word_features.MOST_FEATURES", 4)
    tokenizer = tokenizer_of("words", [*texts, "the"])
    ids = ids_of(tokenizer, [f"the {text}" for text in texts])
    features = WordCounts(tokenizer, len(tokenizer), ids, len(ids), characters=False).features(PAIRS, 2)
    assert len(features.codes) == 4 and code_of("the") in features.codes and (np.diff(features.codes) > 0).all()


def test_documents_without_words(texts):
    tokenizer = tokenizer_of("words", texts)
    counts = WordCounts(tokenizer, len(tokenizer), [[], []], 2, characters=False)
    features = counts.features(WORDS, 2)
    assert features.x.shape == (2, 1) and features.x.nnz == 0
    head = counts.head(features, np.zeros((2, 1)), np.array([1.0, 2.0]))
    assert head(torch.tensor([[0, 1]])).tolist() == [[1.0, 2.0]]
    assert CHARACTERS not in features.codes % KINDS and normalize(features.x).nnz == 0
