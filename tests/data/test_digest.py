from datasets import Dataset

from torch_linformer.data.parts import content_digest

COLUMNS = {"text": ["one", "two"], "label": ["a", "b"]}


def test_everything_that_was_read_counts_and_nothing_else():
    whole = Dataset.from_dict(COLUMNS)
    again = Dataset.from_dict({name: COLUMNS[name] for name in ("label", "text")})
    chosen = Dataset.from_dict({"text": ["two", "no", "one"], "label": ["b", "c", "a"]}).select([2, 0])
    assert len({content_digest({"part": dataset}) for dataset in (whole, again, chosen)}) == 1
    others = [
        {"part": Dataset.from_dict({**COLUMNS, "label": ["b", "a"]})},
        {"part": Dataset.from_dict({**COLUMNS, "text": ["one", "two "]})},
        {"part": whole.select([1, 0])},
        {"part": whole.remove_columns("label")},
        {"part": whole.select([0]), "other": whole.select([1])},
        {"part": whole.select([0]), "another": whole.select([1])},
    ]
    assert len({content_digest(parts) for parts in [{"part": whole}, *others]}) == 7


def test_many_documents():
    """More than are read at once."""
    texts = [f"text {number}" for number in range(2500)]
    digests = {content_digest({"part": Dataset.from_dict({"text": texts[:number]})}) for number in (999, 1000, 1001)}
    assert len(digests) == 3
