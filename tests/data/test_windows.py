from itertools import chain, pairwise

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder, ask_of_lines, tokenize_documents
from torch_linformer.errors import InputError

TEXTS = ["the cat sat on the mat\n", "the other cat ran after the rat\n", "naïve 😀 text  with   spaces\t\n"] * 5
PAD, CLS, SEP, MASK = range(4)
ANY_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60)


@pytest.fixture(scope="module", params=["bytes", "bpe:300"])
def tokenizer(request):
    return build_tokenizer(request.param, TEXTS, max_length=32)


def test_special_tokens_in_a_document_are_text(tokenizer):
    text = "a <mask> b<pad></sep><cls>"
    ids = DocumentEncoder(tokenizer, 100)([text])["input_ids"][0]
    assert not {PAD, CLS, SEP, MASK} & set(ids[1:-1]) and tokenizer.decode(ids[1:-1]) == text


@given(text=ANY_TEXT, max_length=st.integers(3, 40))
@settings(max_examples=60, deadline=None)
def test_the_cut_keeps_both_ends(tokenizer, text, max_length):
    whole = DocumentEncoder(tokenizer, 1_000)([text])["input_ids"][0]
    encoded = DocumentEncoder(tokenizer, max_length)([text])
    ids = encoded["input_ids"][0]
    assert ids == (whole if len(whole) <= max_length else [*whole[: max_length - 1], SEP])
    assert encoded["length"] == [len(ids)] and encoded["num_tokens"] == [len(whole)]


@pytest.mark.parametrize("prompt", ["the cat: ", "query:"])
def test_a_prompt_stands_before_each_window(tokenizer, prompt):
    """The first is the beginning of prompt and text as one; the others have the prompt's tokens too."""
    text = "the other cat ran after the rat " * 4
    joined = DocumentEncoder(tokenizer, 1000)([prompt + text])["input_ids"][0]
    whole = DocumentEncoder(tokenizer, 1000, prompt=prompt)([text])
    assert whole["input_ids"] == [joined] and whole["length"] == whole["num_tokens"] == [len(joined)]
    encoder = DocumentEncoder(tokenizer, 16, overflow="windows", stride=0, prompt=prompt)
    number, windows = encoder.prompt_tokens, encoder([text])["input_ids"]
    assert number > 1 and len(windows) > 1
    assert all(ids[: 1 + number] == joined[: 1 + number] and len(ids) <= 16 for ids in windows)
    assert [token for ids in windows for token in ids[1 + number : -1]] == joined[1 + number : -1]
    cut = DocumentEncoder(tokenizer, 16, prompt=prompt, whole=True)([text])
    assert cut["input_ids"] == [[*joined[:15], SEP]] and cut["whole_ids"] == [joined]
    assert encoder.fingerprint != DocumentEncoder(tokenizer, 16, overflow="windows", stride=0).fingerprint


def test_places_after_a_prompt_are_those_in_the_text(tokenizer):
    text = "the cat sat on the mat, naïve"
    encoder = DocumentEncoder(tokenizer, 16, overflow="windows", stride=0, prompt="query: ", offsets=True)
    windows = encoder([text])
    places = [*zip(*(chain.from_iterable(windows[name]) for name in ("starts", "ends")), strict=True)]
    ids = [window[encoder.prompt_tokens + 1 : -1] for window in windows["input_ids"]]
    assert len(windows["input_ids"]) > 1 and [len(starts) for starts in windows["starts"]] == [*map(len, ids)]
    assert places[0][0] == 0 and places[-1][1] == len(text) and all(begin <= end for begin, end in places)
    assert all(one[1] - other[0] in (0, 1) for one, other in pairwise(places))  # two may have bytes of one character


def test_a_prompt_that_leaves_no_room(tokenizer):
    with pytest.raises(InputError, match="8 tokens leave no room for text beside the special tokens and the prompt "):
        DocumentEncoder(tokenizer, 8, prompt="naïve 😀 naïve 😀 naïve")


def test_the_encoder_leaves_the_tokenizer_alone(word_tokenizer):
    tokenizer = word_tokenizer(["[CLS]", "[SEP]", "[UNK]", "[PAD]", "a", "b"], pad_token="[PAD]")
    before = tokenizer.backend_tokenizer.to_str()
    encoded = DocumentEncoder(tokenizer, 6)(["a b a b", "b"])
    assert encoded["input_ids"] == [[0, 0, 4, 5, 4, 1], [0, 0, 5, 1]]
    assert encoded["num_tokens"] == [7, 4]
    assert tokenizer.backend_tokenizer.to_str() == before


@pytest.mark.parametrize(("template", "expected"), [(None, [0, 0, 0]), ("$A [EOS]", [0, 0, 7])])
def test_tokenizers_with_other_special_tokens_or_none(template, expected):
    backend = Tokenizer(models.WordLevel({"ACGT": 0, "[EOS]": 7}))  # no token for anything else
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    if template:
        backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("[EOS]", 7)])
    encoder = DocumentEncoder(PreTrainedTokenizerFast(tokenizer_object=backend), 3)
    assert encoder(["ACGT " * 5])["input_ids"] == [expected]


@pytest.mark.parametrize("max_length", [2, 1, 0, -5])
def test_no_room_for_text(tokenizer, max_length):
    with pytest.raises(InputError, match=f"^{max_length} tokens leave no room for text beside the special tokens"):
        DocumentEncoder(tokenizer, max_length)
    assert DocumentEncoder(tokenizer, 3)(["abc"])["length"] == [3]


def test_a_dataset_of_token_ids(tokenizer, tmp_path, capfd):
    path = tmp_path / "t.csv"
    path.write_text("text,label\nshort,a\n" + "long text " * 10 + ",b\n")
    dataset = load_documents(str(path)).dataset
    encoder = DocumentEncoder(tokenizer, 16)
    encoded = tokenize_documents(dataset, encoder)
    assert encoded[:] == encoder(dataset["text"][:])
    assert encoded["length"][1] == 16 < encoded["num_tokens"][1]
    again = tokenize_documents(load_documents(str(path)).dataset, DocumentEncoder(tokenizer, 16))
    assert again.cache_files == encoded.cache_files and again._fingerprint == encoded._fingerprint
    assert tokenize_documents(dataset, DocumentEncoder(tokenizer, 15))["length"][1] == 15
    in_windows = tokenize_documents(dataset, DocumentEncoder(tokenizer, 16, overflow="windows"))
    assert in_windows["document"][:2] == [0, 1] and set(in_windows["document"]) == {0, 1} and len(in_windows) > 2
    assert capfd.readouterr() == ("", "")


def test_documents_are_numbered_from_one_batch_to_the_next(tokenizer):
    dataset = Dataset.from_dict({"text": [f"{number}" for number in range(2_300)]})
    encoder = DocumentEncoder(tokenizer, 9)
    encoded = tokenize_documents(dataset, encoder)
    assert encoded["document"][:] == list(range(2_300))
    assert encoded["input_ids"][2_222] == encoder(["2222"])["input_ids"][0]


def test_token_ids_of_part_of_a_dataset(tokenizer):
    dataset = Dataset.from_dict({"text": TEXTS}).select([4, 2])
    encoder = DocumentEncoder(tokenizer, 9)
    assert tokenize_documents(dataset, encoder)[:] == encoder([TEXTS[4], TEXTS[2]])


# Windows


@given(text=ANY_TEXT, max_length=st.integers(4, 30), data=st.data())
@settings(max_examples=150, deadline=None)
def test_windows_hold_every_token_and_neighbours_share_the_stride(tokenizer, text, max_length, data):
    stride = data.draw(st.integers(0, max_length - 3))
    (whole,) = DocumentEncoder(tokenizer, 1_000)([text])["input_ids"]
    windows = DocumentEncoder(tokenizer, max_length, overflow="windows", stride=stride)([text])
    pieces = [ids[1:-1] for ids in windows["input_ids"]]
    assert all((ids[0], ids[-1]) == (CLS, SEP) and len(ids) <= max_length for ids in windows["input_ids"])
    joined = pieces[0]
    for before, piece in pairwise(pieces):
        assert len(before) == max_length - 2 and len(piece) > stride  # full, and something new
        assert before[len(before) - stride :] == piece[:stride]
        joined = joined + piece[stride:]
    assert [CLS, *joined, SEP] == whole
    assert set(windows["num_tokens"]) == {len(whole)} and set(windows["document"]) == {0}


def test_windows_by_hand(word_tokenizer):
    tokenizer = word_tokenizer(["[CLS]", "[SEP]", "[UNK]", "[PAD]", *"abcdefg"], pad_token="[PAD]")
    encoder = DocumentEncoder(tokenizer, 6, overflow="windows", stride=1, offsets=True)
    windows = encoder(["a b c d e", "f", "g a b"], first=7)
    assert windows["document"] == [7, 7, 8, 9]
    assert windows["input_ids"] == [[0, 0, 4, 5, 6, 1], [0, 0, 6, 7, 8, 1], [0, 0, 9, 1], [0, 0, 10, 4, 5, 1]]
    assert windows["num_tokens"] == [8, 8, 4, 6] and windows["text_from"] == [2] * 4
    assert windows["starts"] == [[0, 2, 4], [4, 6, 8], [0], [0, 2, 4]]
    assert windows["ends"] == [[1, 3, 5], [5, 7, 9], [1], [1, 3, 5]]


def test_a_quarter_is_shared_unless_told(tokenizer):
    windows = DocumentEncoder(tokenizer, 22, overflow="windows")(["\t\n" * 200])
    first, second = windows["input_ids"][:2]
    assert first[1:-1][-5:] == second[1:-1][:5]
    assert DocumentEncoder(tokenizer, 22, overflow="windows").stride == 5


@pytest.mark.parametrize("stride", [20, 21, 100])
def test_a_stride_that_leaves_nothing_new(tokenizer, stride):
    with pytest.raises(InputError, match=f"^--stride {stride} leaves no new tokens to a window of 20; take fewer$"):
        DocumentEncoder(tokenizer, 22, overflow="windows", stride=stride)


def test_a_stride_without_windows(tokenizer):
    with pytest.raises(InputError, match=r"^--stride 4 goes with --overflow windows: leave it out, or give that too$"):
        DocumentEncoder(tokenizer, 22, stride=4)


# Questions


def test_a_question_stands_before_every_window(word_tokenizer):
    words = ["[CLS]", "[SEP]", "[UNK]", "[PAD]", *"abcdefg"]
    tokenizer = word_tokenizer(words, pad_token="[PAD]")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] [SEP] $B [SEP]", special_tokens=[("[CLS]", 0), ("[SEP]", 1)]
    )
    encoder = DocumentEncoder(tokenizer, 9, overflow="windows", stride=1, offsets=True)
    windows = encoder(["a b c d e", "a"], ["f g", "g"])
    assert windows["input_ids"] == [[0, 9, 10, 1, 1, 4, 5, 6, 1], [0, 9, 10, 1, 1, 6, 7, 8, 1], [0, 10, 1, 1, 4, 1]]
    assert windows["text_from"] == [5, 5, 4] and windows["num_tokens"] == [11, 11, 6]
    assert windows["starts"] == [[0, 2, 4], [4, 6, 8], [0]]
    # A question takes half of the room at most.
    assert encoder(["a b"], ["f g f g f g"])["input_ids"][0][:5] == [0, 9, 10, 1, 1]


def test_the_second_text_of_a_pair_is_of_another_type(tokenizer):
    pair = tokenizer("the cat", "sat", return_token_type_ids=True)
    second = pair["input_ids"].index(SEP) + 1
    assert pair["token_type_ids"] == [0] * second + [1] * (len(pair["input_ids"]) - second)
    encoded = DocumentEncoder(tokenizer, 32)(["sat"], ["the cat"])
    assert encoded["input_ids"] == [pair["input_ids"]] and encoded["text_from"] == [second]


# Several texts in a row


def test_texts_are_joined_and_words_counted():
    tokenizer = build_tokenizer("bpe:300", TEXTS, max_length=32)
    encoder = DocumentEncoder(tokenizer, 12)
    texts = ["the cat sat", " naïve naïve cat rat"]
    ids = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    row = encoder.join(texts, whole_words=True)
    assert [len(each) for each in ids] == [3, 8]
    assert row["input_ids"] == [CLS, *ids[0], SEP, *ids[1][:6], SEP]  # the last two tokens are cut off
    assert row["words"] == [-1, 0, 1, 2, -1, 3, 3, 3, 4, 4, 4, -1]
    assert encoder.join(["the cat sat"]) == {"input_ids": [CLS, *ids[0], SEP]}
    assert encoder.count("the cat sat") == (3, 3)


SPANS = [
    "the cat",
    " ",
    "\n\n ",
    "naïve",
    "e\u0301\u0327",
    "😀",
    "sat" * 60,
    "貓坐在",
    "x" * 130,
    ". ",
    "\u2003",
    "\x1c",
    "ran",
]


@pytest.fixture(scope="module", params=["words", "bytes", "pieces"])
def trained(request):
    """The tokenizers that encoders usually have: WordPiece, BPE of bytes, and Unigram."""
    normalizer, splitter, model, trainer = {
        "words": (
            normalizers.BertNormalizer(),
            pre_tokenizers.BertPreTokenizer(),
            models.WordPiece(),
            trainers.WordPieceTrainer,
        ),
        "bytes": (normalizers.NFC(), pre_tokenizers.ByteLevel(), models.BPE(), trainers.BpeTrainer),
        "pieces": (normalizers.NFKC(), pre_tokenizers.Metaspace(), models.Unigram(), trainers.UnigramTrainer),
    }[request.param]
    tokenizer = Tokenizer(model)
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    unknown = {"unk_token": "[UNK]"} if request.param == "pieces" else {}
    options = {"vocab_size": 300, "special_tokens": ["[UNK]"], "show_progress": False, **unknown}
    tokenizer.train_from_iterator([*TEXTS, "sat " * 9, "".join(SPANS)] * 5, trainer(**options))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]")


@given(spans=st.lists(st.sampled_from(SPANS), min_size=1, max_size=30), times=st.integers(1, 60))
@settings(max_examples=100, deadline=None)
def test_the_beginning_of_a_text_has_the_first_tokens_of_all_of_it(trained, spans, times):
    encoder, text = DocumentEncoder(trained, 8), "".join(spans) * times
    for characters in (64, 256, 1_024):
        beginning = encoder.beginning(text, 8, characters)
        if beginning is None:
            assert characters < len(text)
        else:
            assert text.startswith(beginning) and len(beginning) <= characters
            assert encoder([beginning])["input_ids"] == encoder([text])["input_ids"]
    assert encoder.beginning(text, 8, len(text)) == text


@pytest.mark.parametrize(
    ("texts", "num_tokens", "asked"),
    [
        (170_178, [14] * 95 + [30] * 5, "170,178 texts, median 14 tokens: is each line a document? "),
        (100_000, [29], "100,000 texts, median 29 tokens: is each line a document? "),
        (100_000, [30], None),
        (170_178, [14] * 94 + [30] * 6, None),
        (99_999, [14], None),
    ],
)
def test_very_many_short_texts_are_a_question(texts, num_tokens, asked):
    questions = ask_of_lines(texts, num_tokens)
    assert len(questions) == (asked is not None) and all(question.startswith(asked) for question in questions)
    assert ask_of_lines(texts, num_tokens, first=True) == [f"the first {question}" for question in questions]
