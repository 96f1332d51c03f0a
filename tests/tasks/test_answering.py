import numpy as np
import pytest
import torch
from datasets import Dataset

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.models import LinformerConfig, LinformerForQuestionAnswering
from torch_linformer.tasks.answering import Answering
from torch_linformer.tasks.registry import task_of

TEXT = "the dog is red, the naïve cat is blue"


@pytest.fixture(scope="module", params=["bytes", "bpe:290"])
def tokenizer(request):
    return build_tokenizer(request.param, [TEXT] * 9, max_length=96)


def asked(*answers, text=TEXT):
    rows = [
        {
            "text": text,
            "question": "which colour?",
            "name": str(number),
            "answers": [answer] if answer else [],
            "starts": [text.index(answer)] if answer else [],
        }
        for number, answer in enumerate(answers)
    ]
    return Dataset.from_list(rows)


def examples(task, tokenizer, documents, max_length=96, **options):
    return task.examples(documents, DocumentEncoder(tokenizer, max_length, offsets=True, **options))


@pytest.mark.parametrize("answer", ["red", "blue", "naïve cat", "the", TEXT])
def test_positions_hold_the_answer(tokenizer, answer):
    (window,) = examples(Answering(tokenizer), tokenizer, asked(answer)).windows
    first, last = (window[name] - window["text_from"] for name in ("start_positions", "end_positions"))
    assert TEXT[window["starts"][first] : window["ends"][last]].strip() == answer


def test_no_answer_is_the_first_token(tokenizer):
    (window,) = examples(Answering(tokenizer), tokenizer, asked(None)).windows
    assert (window["start_positions"], window["end_positions"]) == (0, 0)


def test_only_windows_that_hold_all_of_the_answer_have_it():
    tokenizer = build_tokenizer("bytes", [], max_length=96)
    windows = examples(Answering(tokenizer), tokenizer, asked("naïve cat"), 40, overflow="windows", stride=12).windows
    start = TEXT.index("naïve cat")
    assert len(windows) > 2
    for window in windows:
        whole = window["starts"][0] <= start and window["ends"][-1] >= start + len("naïve cat")
        assert (window["start_positions"] > 0) == (window["end_positions"] > 0) == whole
    assert any(window["start_positions"] > 0 for window in windows)


def test_a_batch_tells_the_question_from_the_text(tokenizer):
    task = Answering(tokenizer)
    documents = asked("red", "blue").map(lambda row, i: {"question": "?" * (1 + 3 * i)}, with_indices=True)
    windows = examples(task, tokenizer, documents).windows
    batch = task.collate([windows[0], windows[1]])
    for row, window in enumerate(windows):
        types = batch["token_type_ids"][row, : window["length"]].tolist()
        assert types == [0] * window["text_from"] + [1] * (window["length"] - window["text_from"])
    assert batch["start_positions"].tolist() == windows["start_positions"][:]
    assert "start_positions" not in task.collate([{"input_ids": [1, 2, 3], "text_from": 1}])
    pair = tokenizer("which colour?", TEXT, return_token_type_ids=True)
    (window,) = examples(task, tokenizer, asked("red")).windows
    assert window["input_ids"] == pair["input_ids"]
    assert task.collate([window])["token_type_ids"][0].tolist() == pair["token_type_ids"]


def scores_for(windows, document, start, end, strength=5.0, nothing=0.0):
    """What a model would say that finds characters ``start`` to ``end`` of a document wherever a window holds them."""
    reduced = []
    for window in windows:
        rows = np.full((96, 2), -9.0)
        rows[0] = nothing / 2
        for token, (a, b) in enumerate(zip(window["starts"], window["ends"], strict=True)):
            if window["document"] == document and a <= start < b:
                rows[window["text_from"] + token, 0] = strength
            if window["document"] == document and a < end <= b:
                rows[window["text_from"] + token, 1] = strength
        reduced.append(rows)
    return np.stack(reduced)


@pytest.mark.parametrize("options", [{}, {"max_length": 48, "overflow": "windows", "stride": 8}])
def test_the_best_stretch_is_the_answer_in_characters_of_the_document(tokenizer, options):
    task = Answering(tokenizer)
    documents = asked("red", "blue")
    windows = examples(task, tokenizer, documents, **options).windows
    start = TEXT.index("blue")
    answers = task.answers(scores_for(windows, 1, start, start + 4), windows, documents)
    assert answers[1]["answer"] == "blue" and (answers[1]["start"], answers[1]["end"]) == (start, start + 4)
    assert answers[1]["score"] > 0.99
    assert answers[0]["answer"] == "" and (answers[0]["start"], answers[0]["end"]) == (0, 0)
    scores = task.scores(answers, documents)
    assert scores["exact_match"] == 0.5 and set(task.headline) <= set(scores)


def test_nothing_is_an_answer_where_every_window_says_so(tokenizer):
    task = Answering(tokenizer)
    documents = asked(None)
    windows = examples(task, tokenizer, documents).windows
    start = TEXT.index("red")
    doubtful = scores_for(windows, 0, start, start + 3, strength=1.0, nothing=3.0)
    assert task.answers(doubtful, windows, documents)[0]["answer"] == ""
    assert task.scores(task.answers(doubtful, windows, documents), documents)["exact_match"] == 1.0
    assert task.answers(scores_for(windows, 0, start, start + 3, 1.0, 1.0), windows, documents)[0]["answer"] == "red"


def perfect(windows):
    """Scores of each window's tokens that are highest at the true answer."""
    reduced = []
    for window in windows:
        scores = np.full((window["length"], 2), -9.0)
        scores[window["start_positions"], 0] = scores[window["end_positions"], 1] = 9.0
        reduced.append(scores)
    return reduced


@pytest.mark.parametrize("words", [3, 40, 180])
def test_answers_of_any_length_are_given(tokenizer, words):
    task = Answering(tokenizer)
    documents = asked("word " * words + "end", text="red " + "word " * words + "end of it")
    made = examples(task, tokenizer, documents, 1200)
    for max_answer_length in (None, int(np.ptp([made.windows["end_positions"], made.windows["start_positions"]])) + 1):
        task.max_answer_length = max_answer_length
        answers = task.answers(perfect(made.windows), made.windows, documents)
        assert task.scores(answers, documents)["exact_match"] == 1.0


def test_answers_are_as_long_as_the_longest_of_the_training(tokenizer):
    documents = asked("red", "naïve cat", None)
    task, told = Answering(tokenizer), Answering(tokenizer, max_answer_length=1)
    train = examples(task, tokenizer, documents)
    task.learn(train), told.learn(train)
    start, end = (np.asarray(train.windows[name][:]) for name in ("start_positions", "end_positions"))
    assert task.max_answer_length == end[1] - start[1] + 1 > 1 == told.max_answer_length
    config = LinformerConfig(
        max_position_embeddings=96, num_hidden_layers=1, hidden_size=12, num_attention_heads=2, k=4
    )
    model = LinformerForQuestionAnswering(config)
    task.finish(model)
    assert task_of(model, tokenizer).max_answer_length == task.max_answer_length
    unanswered = Answering(tokenizer)
    unanswered.learn(examples(unanswered, tokenizer, asked(None)))
    assert unanswered.max_answer_length == 1


def test_an_answer_does_not_end_before_it_begins_nor_run_on(tokenizer):
    task = Answering(tokenizer, max_answer_length=50)
    text = "red " + "word " * 200 + "blue"
    documents = asked("red", text=text)
    windows = examples(task, tokenizer, documents, 1200).windows
    (window,) = windows
    first, last = window["text_from"], window["text_from"] + len(window["starts"]) - 1
    whole = np.full((1200, 2), -9.0)
    whole[first] = (3.0, 1.0)
    whole[first + 49], whole[first + 50] = (-9.0, 2.0), (-9.0, 2.5)  # of 50 and of 51 tokens
    whole[last] = (-9.0, 3.5)  # from first to last it would be hundreds
    (answer,) = task.answers(whole[None], windows, documents)
    assert (answer["start"], answer["end"]) == (window["starts"][0], window["ends"][49])
    backwards = np.full((1200, 2), -9.0)
    backwards[last] = (5.0, -1.0)
    backwards[first] = (-9.0, 5.0)
    (answer,) = task.answers(backwards[None], windows, documents)
    assert answer["end"] == len(text)


def test_the_scores_of_both_ends_are_kept(tokenizer):
    start, end = torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0, 4.0]])
    assert Answering(tokenizer).reduce((start, end), None).tolist() == [[[1.0, 3.0], [2.0, 4.0]]]
