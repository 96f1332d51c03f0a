import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.records import join_words
from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.tasks.tagging import Tagging, tagging_of
from torch_linformer.tasks.task import pad_targets

NAMES = ["B-LOC", "B-PER", "I-PER", "O"]
WORDS = ["Ann", "Lee", "met", "Bo", "in", "Rome"]
TAGS = ["B-PER", "I-PER", "O", "B-PER", "O", "B-LOC"]


@pytest.fixture(scope="module", params=["bytes", "bpe:290"])
def tokenizer(request):
    return build_tokenizer(request.param, [" ".join(WORDS)] * 9, max_length=64)


def tagged(*sentences):
    rows = [{**join_words(words), "label": tags} for words, tags in sentences]
    return Dataset.from_list(rows)


def first_tokens(window):
    return [place for place, label in enumerate(window["labels"]) if label != -100]


def test_the_first_token_of_each_word_has_its_tag(tokenizer):
    task = Tagging(tokenizer, NAMES)
    (window,) = task.examples(tagged((WORDS, TAGS)), DocumentEncoder(tokenizer, 64, offsets=True)).windows
    assert [NAMES[window["labels"][place]] for place in first_tokens(window)] == TAGS
    text = " ".join(WORDS)
    for place, word in zip(first_tokens(window), WORDS, strict=True):
        start = window["starts"][place - 1]  # one special token stands before the text
        assert text[start:].lstrip().startswith(word)
    assert len(window["labels"]) == len(window["input_ids"])


def test_windows_share_words_and_none_is_tagged_where_it_does_not_begin(tokenizer):
    task = Tagging(tokenizer, NAMES)
    encoder = DocumentEncoder(tokenizer, 9, offsets=True, overflow="windows", stride=3)
    words, tags = WORDS * 3, TAGS * 3
    windows = task.examples(tagged((words, tags)), encoder).windows
    assert len(windows) > 2
    text, starts = " ".join(words), join_words(words)["word_starts"]
    found = set()
    for window in windows:
        for place in first_tokens(window):
            token = place - window["text_from"]
            begins = window["starts"][token] + (text[window["starts"][token]] == " ")
            assert begins in starts and tags[starts.index(begins)] == NAMES[window["labels"][place]]
            found.add(begins)
    assert found == set(starts)


def test_a_word_without_a_token_has_no_place():
    """A tokenizer that drops a sign: the token after it is the next word's."""
    backend = Tokenizer(models.WordLevel({"[PAD]": 0, "a": 1, "b": 2}, unk_token="[PAD]"))
    backend.normalizer = normalizers.Replace("~", "")
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    task = Tagging(PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]"), NAMES)
    documents = tagged((["a", "~", "b"], ["O", "B-LOC", "B-PER"]))
    windows = task.examples(documents, DocumentEncoder(task.tokenizer, 8, offsets=True)).windows
    (window,) = windows
    assert window["input_ids"] == [1, 2] and [NAMES[label] for label in window["labels"]] == ["O", "B-PER"]
    answers = task.answers(np.full((1, 2, 2), 0.5), windows, documents)
    assert [score for _, score in answers[0]] == [0.5, 0.0, 0.5]


def test_a_batch_is_padded_on_either_side(tokenizer):
    task = Tagging(tokenizer, NAMES)
    windows = task.examples(
        tagged((WORDS, TAGS), (["Bo"], ["B-PER"])), DocumentEncoder(tokenizer, 64, offsets=True)
    ).windows
    batch = task.collate([windows[0], windows[1]])
    length = windows[1]["length"]
    assert batch["labels"].shape == batch["input_ids"].shape
    assert batch["labels"][1, :length].tolist() == windows[1]["labels"] and (batch["labels"][1, length:] == -100).all()
    left = pad_targets([[1, 2], [3]], torch.tensor([[1, 1], [0, 1]]))
    assert left.tolist() == [[1, 2], [-100, 3]]


def read(task, tokenizer, documents, tags_of, **options):
    """Answers where the model finds at every token what ``tags_of`` says of the window and the token of text."""
    encoder = DocumentEncoder(tokenizer, options.pop("max_length", 64), offsets=True, **options)
    windows = task.examples(documents, encoder).windows
    reduced = []
    for number, window in enumerate(windows):
        rows = np.full((64, 2), -100.0)
        for token in range(len(window["starts"])):
            rows[window["text_from"] + token] = tags_of(number, token, window)
        reduced.append(rows)
    return task.answers(np.stack(reduced), windows, documents), windows


def test_what_the_model_says_of_first_tokens_is_the_answer(tokenizer):
    task = Tagging(tokenizer, NAMES)
    documents = tagged((WORDS, TAGS), (["Bo", "met"], ["B-PER", "O"]))
    probability = 0.75

    def right(number, token, window):
        label = window["labels"][window["text_from"] + token]
        return (label if label != -100 else 0), probability  # elsewhere it says B-LOC, which must not matter

    answers, _ = read(task, tokenizer, documents, right)
    assert answers == [[(tag, probability) for tag in tags] for tags in documents["label"]]
    scores = task.scores(answers, documents)
    assert (scores["f1"], scores["accuracy"]) == (1.0, 1.0) and set(task.headline) <= set(scores)
    assert task.scores([[("O", 0.0)] * 6, [("O", 0.0)] * 2], documents)["f1"] == 0.0


def test_tags_that_are_bare_numbers_are_scored_by_accuracy_alone(tokenizer):
    """A tagger that finds nothing is right about most words, and has found nothing."""
    documents = tagged((["a", "b", "c", "d"], ["0", "0", "0", "3"]))
    nothing = [[("0", 1.0)] * 4]
    numbered = tagging_of(tokenizer, ["0", "3"])
    assert numbered.scores(nothing, documents) == {"accuracy": 0.75}
    assert (numbered.best_metric, numbered.headline) == ("accuracy", ("accuracy",))
    assert numbered.baselines(documents, documents) == {"frequent_tag": {"accuracy": 1.0}}
    named = tagging_of(tokenizer, ["O", "B-LOC"])
    assert (named.best_metric, named.headline) == ("f1", ("f1", "accuracy"))


def test_of_several_windows_the_one_with_most_text_around_a_word_counts():
    tokenizer = build_tokenizer("bytes", [], max_length=64)
    task = Tagging(tokenizer, NAMES)
    # Windows of characters 0 to 8 and 4 to 11. The word at 4 has 3 characters at least on both sides in the first
    # and none in the second; that at 6 has 1 and 2.
    documents = tagged((["a", "b", "c", "d", "e", "f"], ["O"] * 6))

    def by_window(number, token, window):
        return number, 0.5 + number / 10

    answers, windows = read(task, tokenizer, documents, by_window, max_length=10, overflow="windows", stride=4)
    assert len(windows) == 2
    assert [tag for tag, _ in answers[0]] == ["B-LOC", "B-LOC", "B-LOC", "B-PER", "B-PER", "B-PER"]


def test_words_that_were_cut_off_belong_to_nothing():
    tokenizer = build_tokenizer("bytes", [], max_length=64)
    task = Tagging(tokenizer, NAMES)
    answers, _ = read(task, tokenizer, tagged((WORDS, TAGS)), lambda *_: (1, 0.9), max_length=10)
    assert [tag for tag, _ in answers[0]] == ["B-PER", "B-PER", "O", "O", "O", "O"]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (Document("", "Ann (Lee), naïve\n 中国!"), ["Ann", "(", "Lee", ")", ",", "naïve", "中", "国", "!"]),
        (Document("", "U.S. 中国", None, ("U.S.", "中国")), ["U.S.", "中国"]),
    ],
    ids=["a text", "given words"],
)
def test_a_document_without_tags_is_read_as_words_with_a_space_between_them(tokenizer, document, words):
    documents = Tagging(tokenizer, NAMES).documents([document])
    assert {name: rows for name, (rows,) in documents.items()} == join_words(words)


@pytest.mark.parametrize(
    ("tags", "entities"),
    [
        (["B-PER", "I-PER", "O", "B-LOC"], [("PER", "Ann Lee"), ("LOC", "Rome")]),
        (["B-PER", "B-PER", "O", "O"], [("PER", "Ann"), ("PER", "Lee")]),
        (["I-PER", "I-PER", "I-LOC", "I-LOC"], [("PER", "Ann Lee"), ("LOC", "in Rome")]),
        (["O", "O", "O", "I-LOC"], [("LOC", "Rome")]),
        (["S-PER", "S-PER", "B-LOC", "E-LOC"], [("PER", "Ann"), ("PER", "Lee"), ("LOC", "in Rome")]),
        (["NOUN", "NOUN", "O", "VERB"], [("NOUN", "Ann Lee"), ("VERB", "Rome")]),
        (["O", "O", "O", "O"], []),
    ],
)
def test_tags_spell_out_entities(tokenizer, tags, entities):
    text = "Ann Lee, Rome" if "in" not in str(entities) else "Ann Lee in Rome"
    words = text.replace(",", " ,").split()
    assert len(words) == 4
    described = Tagging(tokenizer, NAMES).describe([(tag, 0.5) for tag in tags], Document("", text))
    found = described["entities"]
    assert [(entity["label"], entity["text"]) for entity in found] == entities
    assert all(text[entity["start"] : entity["end"]] == entity["text"] for entity in found)


def test_the_score_of_an_entity_is_the_mean_of_its_words(tokenizer):
    described = Tagging(tokenizer, NAMES).describe([("B-PER", 0.5), ("I-PER", 1.0)], Document("", "Ann Lee"))
    assert described["entities"] == [{"label": "PER", "start": 0, "end": 7, "text": "Ann Lee", "score": 0.75}]


def test_best_tag_and_its_probability(tokenizer):
    logits = torch.tensor([[[0.0, np.log(3.0)], [5.0, 5.0]]])
    reduced = Tagging(tokenizer, ["O", "B"]).reduce(logits, None)
    assert reduced[0, 0].tolist() == pytest.approx([1.0, 0.75]) and reduced[0, 1, 1] == 0.5
