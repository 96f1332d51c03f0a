import json
import re
from collections import Counter

import pytest

from torch_linformer.errors import InputError
from torch_linformer.training.splits import load_splits
from torch_linformer.training.train_settings import TrainSettings


@pytest.fixture
def numbered(tmp_path, write_csv):
    """A function: a file of distinct documents with the labels given, and its path."""

    def make(name, labels):
        return write_csv(tmp_path / name, [(f"{name} {i}", label) for i, label in enumerate(labels)])

    return make


def test_fractions_are_split_off_without_overlap(numbered):
    data = numbered("a.csv", ["x", "y"] * 50)
    splits = load_splits(TrainSettings(data=data, test="0.2", validation="0.25"))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (60, 20, 20)
    texts = [*splits.train["text"], *splits.validation["text"], *splits.test["text"]]
    assert len(set(texts)) == len(texts) == 100
    for part in (splits.train, splits.validation, splits.test):
        counts = Counter(part["label"])
        assert counts["x"] == counts["y"]
    assert splits.names == ["x", "y"]
    assert splits.notes == ["texts from column 'text' (by its name), labels from column 'label' (by its name)"]


def test_the_split_follows_from_the_seed_and_validation_leaves_the_test_alone(numbered):
    data = numbered("a.csv", ["x", "y"] * 50)

    def test_texts(**options):
        return load_splits(TrainSettings(data=data, **options)).test["text"][:]

    assert test_texts(seed=1) == test_texts(seed=1) == test_texts(seed=1, validation="0.4")
    assert test_texts(seed=1) != test_texts(seed=2)


def test_a_file_is_a_part_as_a_whole(numbered):
    data = numbered("a.csv", ["x", "y"] * 10)
    held_out, watched = numbered("b.csv", ["x"] * 3 + ["y"] * 4), numbered("c.csv", ["y"] * 5)
    splits = load_splits(TrainSettings(data=data, test=held_out, validation=watched))
    assert len(splits.train) == 20
    assert splits.test["text"][:] == [f"b.csv {i}" for i in range(7)]
    assert splits.validation["text"][:] == [f"c.csv {i}" for i in range(5)]
    assert [note.partition(":")[0] for note in splits.notes[1:]] == ["test", "validation"]
    assert splits.warnings == ["warning: no validation document has the label 'x'"]


def test_a_file_for_one_part_and_a_fraction_for_the_other(numbered):
    data, held_out = numbered("a.csv", ["x", "y"] * 10), numbered("b.csv", ["x", "y"])
    splits = load_splits(TrainSettings(data=data, test=held_out, validation="0.2"))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (16, 4, 2)
    assert not set(splits.train["text"]) & {*splits.validation["text"], *splits.test["text"]}


def test_a_part_without_labels_is_named(tmp_path, write_csv):
    (tmp_path / "data").mkdir()
    write_csv(tmp_path / "data" / "train.csv", [(f"text {i}", "xy"[i % 2]) for i in range(20)])
    write_csv(tmp_path / "data" / "test.csv", [(f"text {i}",) for i in range(5)], header=("text",))
    with pytest.raises(InputError) as raised:
        load_splits(TrainSettings(data=str(tmp_path / "data")))
    assert str(raised.value).startswith(f"test: {tmp_path / 'data'}: no label column found; ")
    assert str(raised.value).endswith("; --data may name one file of the folder")


@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_label_that_training_lacks(numbered, part):
    data, other = numbered("a.csv", ["x", "y"] * 10), numbered("b.csv", ["x", "z", "z"])
    with pytest.raises(InputError) as raised:
        load_splits(TrainSettings(data=data, **{part: other}))
    assert str(raised.value) == f"{other}: 2 documents with label 'z', which no training document has (x, y)"


def test_masked_language_modeling_needs_no_labels(tmp_path, write_csv):
    data = write_csv(tmp_path / "a.csv", [(f"text {i}",) for i in range(20)], header=("text",))
    splits = load_splits(TrainSettings(data=data, task="mlm", test="0.1", validation="0.1"))
    assert (len(splits.train), len(splits.validation), len(splits.test)) == (16, 2, 2)
    assert splits.names == [] and splits.train.column_names == ["text"]


def test_one_label_only(numbered):
    with pytest.raises(InputError, match="every document has the label 'x': a classifier needs two labels"):
        load_splits(TrainSettings(data=numbered("a.csv", ["x"] * 20)))


@pytest.mark.parametrize(
    ("labels", "task"), [(["x", "y"], "classify"), (["x", "x", "y"], "classify"), (["x", "y"], "mlm")]
)
def test_too_few_documents_to_split(numbered, labels, task):
    short = ": give more" if task == "mlm" else ", no two of which have the same label: give several of each"
    with pytest.raises(InputError, match=rf"^cannot split \d documents?{short}, or a file for each part$"):
        load_splits(TrainSettings(data=numbered("a.csv", labels), task=task))


def test_a_part_that_is_none(numbered):
    data = numbered("a.csv", ["x", "y"] * 10)
    with pytest.raises(InputError, match=r"^1\.5 is no part of the data: give a fraction above 0 and below 1"):
        load_splits(TrainSettings(data=data, test="1.5"))
    with pytest.raises(InputError, match=r"none\.csv: no such file or folder"):
        load_splits(TrainSettings(data=data, validation="none.csv"))


def test_columns_named_once_serve_every_part(tmp_path, write_csv):
    rows = [(str(i), f"text {i}", "xy"[i % 2]) for i in range(20)]
    header = ("first", "body", "second")
    data, held_out = (write_csv(tmp_path / name, rows, header) for name in ("a.csv", "b.csv"))
    settings = TrainSettings(data=data, test=held_out, text_column="body", label_column="second")
    splits = load_splits(settings)
    assert splits.test["text"][:] == [row[1] for row in rows] and splits.names == ["x", "y"]


# What is said of the scores


def test_a_file_twice_is_said_and_counted(numbered):
    data = numbered("a.csv", ["x", "y"] * 10)
    said = "warning: {} {} documents have a text that is also in {}: scores on them say little about new texts"
    assert load_splits(TrainSettings(data=data)).warnings == []
    assert load_splits(TrainSettings(data=data, validation=data)).warnings == [
        said.format("16 of the 20", "validation", "training"),
        said.format("4 of the 4", "test", "validation"),
    ]
    assert load_splits(TrainSettings(data=data, test=data)).warnings == [
        said.format("18 of the 20", "test", "training"),
        said.format("2 of the 20", "test", "validation"),
    ]


def test_what_is_repeated_is_counted_even_where_it_is_nothing(tmp_path, write_csv, numbered):
    rows = [(f"text {i // 2}", "xy"[i % 4 // 2]) for i in range(40)]  # each twice
    data, held_out = write_csv(tmp_path / "a.csv", rows), write_csv(tmp_path / "b.csv", rows[:3])
    splits = load_splits(TrainSettings(data=data, test=held_out, validation=numbered("c.csv", "xy")))
    assert splits.repeats == {
        "repeated in training": 20,
        "repeated in validation": 0,
        "repeated in test": 1,
        "validation texts that are also in training": 0,
        "test texts that are also in training": 3,
        "test texts that are also in validation": 0,
    }


def test_a_text_in_two_parts(tmp_path, write_csv, numbered):
    data = numbered("a.csv", ["x", "y"] * 10)
    held_out = write_csv(tmp_path / "b.csv", [("a.csv 3", "y"), ("new", "x"), ("newer", "x")])
    (warning,) = load_splits(TrainSettings(data=data, test=held_out, validation=numbered("c.csv", "xy"))).warnings
    assert warning.startswith("warning: 1 of the 3 test documents have a text that is also in training: ")


def test_labels_that_contradict_each_other(tmp_path, write_csv):
    rows = [(f"text {i}", "xy"[i % 2]) for i in range(40)]
    data = write_csv(tmp_path / "a.csv", [*rows, *[("text 0", "y")] * 2, ("text 1", "x"), ("text 2", "x")])
    warnings = load_splits(TrainSettings(data=data)).warnings
    assert warnings[-1] == (
        "warning: the same text with different labels: 2 such texts in 5 documents; no model can be right about all "
        "of them"
    )


@pytest.fixture
def questions(tmp_path):
    """A function: a file with four questions about each of some passages, and its path."""

    def make(name, passages):
        rows = [
            {"context": f"{p} is wet mud", "question": f"is it {q}?", "answers": "mud"}
            for p in passages
            for q in range(4)
        ]
        (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(tmp_path / name)

    return make


def test_another_question_about_a_context_is_another_document(questions):
    data, few = questions("a.jsonl", range(20)), questions("b.jsonl", range(1))
    assert load_splits(TrainSettings(data=data, task="qa")).repeats["repeated in training"] == 0
    splits = load_splits(TrainSettings(data=data, task="qa", test=few))
    assert splits.repeats["test texts that are also in training"] == 4


def test_questions_about_a_context_stay_together(questions):
    splits = load_splits(TrainSettings(data=questions("a.jsonl", range(50)), task="qa"))
    contexts = [set(part["text"]) for part in (splits.train, splits.validation, splits.test)]
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [144, 16, 40]
    assert sum(map(len, contexts)) == len(set.union(*contexts)) == 50 and splits.warnings == []
    with pytest.raises(
        InputError, match="cannot split 4 documents, whose column 'text' makes 1 group: give more groups"
    ):
        load_splits(TrainSettings(data=questions("b.jsonl", range(1)), task="qa"))


def test_contexts_in_files_of_two_parts_are_counted(questions):
    data, other = questions("a.jsonl", range(20)), questions("b.jsonl", range(18, 28))
    splits = load_splits(TrainSettings(data=data, task="qa", test=other, validation=questions("c.jsonl", [99])))
    assert splits.repeats["contexts of test documents that are also in training"] == 2
    assert splits.warnings[-1] == (
        "warning: 2 of the 10 contexts of the test documents are also in training: scores on them say little "
        "about new contexts"
    )


def test_queries_of_documents_in_two_parts_are_counted(tmp_path, write_csv):
    rows = [(f"query {i % 20}", f"document {i}") for i in range(40)]
    data = write_csv(tmp_path / "p.csv", rows, ("query", "document"))
    warnings = load_splits(TrainSettings(data=data, task="embed")).warnings
    assert any(
        re.match(r"warning: \d of the \d queries of the test documents are also in training", w) for w in warnings
    )


def digest_of(data, **options):
    return load_splits(TrainSettings(data=data, **options)).digest


def test_the_digest_is_that_of_the_contents(tmp_path, write_csv):
    rows = [(f"text {i}", "xy"[i % 2]) for i in range(20)]
    first = digest_of(write_csv(tmp_path / "a.csv", rows))
    assert first == digest_of(write_csv(tmp_path / "b.csv", rows))  # another file with another time
    texts = write_csv(tmp_path / "c.csv", [("text 00", "x"), *rows[1:]])
    labels = write_csv(tmp_path / "d.csv", [("text 0", "y"), *rows[1:]])
    longer = write_csv(tmp_path / "e.csv", [*rows, ("more", "x")])
    digests = [first, *map(digest_of, (texts, labels, longer)), digest_of(str(tmp_path / "a.csv"), seed=1)]
    assert len(set(digests)) == 5


def test_the_digest_is_the_same_in_every_process(tmp_path, write_csv):
    """It does not follow from the hashes of Python, which differ from one to the next."""
    data = write_csv(tmp_path / "a.csv", [(f"text {i}", "xy"[i % 2]) for i in range(20)])
    assert digest_of(data) == "82b504de46140e6c418300cf09952a74a0616eae617aa26605d9e0fde8d5fdda"


# Labels that are none, and labels that are numbers


def test_a_column_of_addresses_is_no_label(tmp_path, write_csv):
    rows = [(f"text {i}", f"https://example.org/{i % 70}") for i in range(80)]
    data = write_csv(tmp_path / "posts.csv", rows, ("text", "url"))
    message = (
        r"posts\.csv: 70 different labels of 80 documents: is 'url' the label column\? Name another with --label-c"
    )
    for options in ({}, {"label_column": "url"}):
        with pytest.raises(InputError, match=message):
            load_splits(TrainSettings(data=data, **options))


def test_no_label_column(tmp_path, write_csv):
    data = write_csv(tmp_path / "a.csv", [(f"text {i}",) for i in range(20)], header=("text",))
    with pytest.raises(InputError, match=r"a\.csv: no label column found; name it with --label-column"):
        load_splits(TrainSettings(data=data))


def tagged(path, tags):
    rows = [{"tokens": [f"w{i}" for i in range(len(row))], "ner_tags": row} for row in tags]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_tags_that_are_numbers_get_their_names(tmp_path):
    data = tagged(tmp_path / "a.jsonl", [[0, 0, 1, 2]] * 20)
    splits = load_splits(TrainSettings(data=data, task="token-classify", label_names="O,B-PER, I-PER,B-LOC"))
    assert splits.names == ["O", "B-PER", "I-PER", "B-LOC"] and not any("number" in w for w in splits.warnings)
    assert splits.test["label"][0] == ["O", "O", "B-PER", "I-PER"]
    unnamed = load_splits(TrainSettings(data=data, task="token-classify"))
    assert unnamed.names == ["0", "1", "2"]
    assert unnamed.warnings[-1].startswith("warning: the tags are numbers") and "--label-names" in unnamed.warnings[-1]
    with pytest.raises(
        InputError, match=r"a\.jsonl: 20 documents with label '2', which --label-names does not name \(O, B"
    ):
        load_splits(TrainSettings(data=data, task="token-classify", label_names="O,B-PER"))


def test_words_that_running_text_would_divide_are_counted(tmp_path):
    path = tmp_path / "a.conll"
    path.write_text("Ann\tB-PER\npaid\tO\n5.975,74\tO\n.\tO\n\nAT&T\tO\nleft\tO\n\n" * 8)
    (note,) = load_splits(TrainSettings(data=str(path), task="token-classify", test="0.25")).notes[-1:]
    assert re.match(
        r"1\d of \d\d training words, such as '(5.975,74|AT&T)', are more than one word in running te", note
    )
    path.write_text("Ann\tB-PER\npaid\tO\n.\tO\n\n" * 8)
    assert not any(
        "running text" in note for note in load_splits(TrainSettings(data=str(path), task="token-classify")).notes
    )


def test_lists_of_zeros_and_ones_are_refused_without_names(tmp_path):
    lists = [[i % 2, 1, i % 3 == 0] for i in range(30)]
    path = tmp_path / "a.jsonl"
    path.write_text("".join(json.dumps({"text": f"t{i}", "labels": row}) + "\n" for i, row in enumerate(lists)))
    with pytest.raises(InputError, match="the labels of each document are 3 zeros and ones: give 3 names"):
        load_splits(TrainSettings(data=str(path), task="multilabel"))
    splits = load_splits(TrainSettings(data=str(path), task="multilabel", label_names="rude,loud,spam"))
    assert splits.names == ["rude", "loud", "spam"]
    by_text = {row["text"]: row["label"] for part in (splits.train, splits.validation, splits.test) for row in part}
    assert by_text["t0"] == ["loud", "spam"] and by_text["t1"] == ["rude", "loud"] and by_text["t4"] == ["loud"]


LABELED_BY_COLUMNS = {"task": "multilabel", "label_column": "rude,loud"}


def by_columns(path, cells):
    rows = "".join(f"t{i},{','.join(row)}\n" for i, row in enumerate(cells))
    path.write_text(f"text,rude,loud\n{rows}")
    return str(path)


def test_empty_cells_are_unknown_and_counted(tmp_path):
    data = by_columns(tmp_path / "a.csv", [("1", ""), ("0", "1"), ("", "0"), ("", "")] * 10)
    splits = load_splits(TrainSettings(data=data, **LABELED_BY_COLUMNS))
    assert splits.notes[1:] == [
        "left out 10 documents of which no label is known",
        "empty cells are neither learned nor scored; rude: 10 of 30 rows unknown, loud: 10 of 30 rows unknown",
    ]
    rows = {row["text"]: row for part in (splits.train, splits.validation, splits.test) for row in part}
    assert len(rows) == 30 and "t3" not in rows
    assert [(rows[name]["label"], rows[name]["unknown"]) for name in ("t0", "t1", "t2")] == [
        (["rude"], ["loud"]),
        (["loud"], []),
        ([], ["rude"]),
    ]


def test_a_list_of_labels_that_is_null_is_unknown(tmp_path):
    path = tmp_path / "a.jsonl"
    cells = ('["rude"]', '["loud"]', "[]", "null")
    path.write_text("".join(f'{{"text": "t{i}", "labels": {cells[i % 4]}}}\n' for i in range(40)))
    splits = load_splits(TrainSettings(data=str(path), task="multilabel"))
    rows = [row["text"] for part in (splits.train, splits.validation, splits.test) for row in part]
    assert len(rows) == 30 and not {f"t{i}" for i in range(3, 40, 4)} & {*rows}
    assert splits.notes[1:] == ["left out 10 documents of which 'labels' is null; [] says that there is none"]


def test_cells_that_stand_for_no_label_are_named(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,labels\n" + "".join(f"t{i},{('rude', 'loud', 'nan')[i % 3]}\n" for i in range(30)))
    splits = load_splits(TrainSettings(data=str(path), task="multilabel"))
    assert splits.names == ["loud", "rude"] and splits.notes[1:] == ["column 'labels' holds 'nan' in 10 rows: no label"]


@pytest.mark.parametrize(
    ("cells", "problem"),
    [
        (
            [("1", ""), ("0", "1")],
            "column 'loud': each cell holds 1 or is empty, and an empty cell is a label that nobo",
        ),
        (
            [("1", ""), ("0", "")],
            "column 'loud': each cell is empty, and an empty cell is a label that nobody knows: wr",
        ),
        ([("", ""), ("", "")], r"a\.csv: all cells in the columns of the labels \(rude, loud\) are empty"),
    ],
    ids=["empty for no", "empty", "all empty"],
)
def test_a_label_of_which_nobody_knows_a_no_is_refused(tmp_path, cells, problem):
    with pytest.raises(InputError, match=problem):
        load_splits(TrainSettings(data=by_columns(tmp_path / "a.csv", cells * 10), **LABELED_BY_COLUMNS))


def test_classes_that_are_numbers_get_their_names(numbered):
    data = numbered("a.csv", [0, 1] * 20)
    splits = load_splits(TrainSettings(data=data, label_names="ham,spam"))
    assert splits.names == ["ham", "spam"] and Counter(splits.test["label"]) == {"ham": 4, "spam": 4}


def test_numbers_as_labels_want_a_regression(numbered):
    message = r"a\.csv: 79 different numbers as the labels of 80 documents: --task regress learns numbers, --task cl"
    with pytest.raises(InputError, match=message):
        load_splits(TrainSettings(data=numbered("a.csv", ["0.5", *(f"{i / 100}" for i in range(1, 80))])))
    load_splits(TrainSettings(data=numbered("b.csv", [str(i % 5) for i in range(80)])))
