"""An output in parts beside a manifest: what a run leaves, finishes, goes on from and refuses."""

import json
import re
import shutil
from contextlib import nullcontext

import pytest
from pyarrow import parquet

from torch_linformer.errors import InputError
from torch_linformer.inference import output_parts
from torch_linformer.inference.answer_files import EmbedSettings, PredictSettings, answer_files
from torch_linformer.opening.devices import resolve_precision


@pytest.fixture
def given(tmp_path, weather, monkeypatch):
    """Three files of 20 documents in a folder, and a part for every document."""
    monkeypatch.setattr(output_parts, "PART_SECONDS", 0.0)
    (tmp_path / "posts").mkdir()
    for number in range(3):
        lines = [json.dumps({"text": text}) + "\n" for text, _ in weather(20, seed=number)]
        (tmp_path / "posts" / f"{number}.jsonl").write_text("".join(lines))
    return tmp_path / "posts"


@pytest.fixture
def predict(classifier_run, given, tmp_path):
    """A function: predict or embed the folder's documents, 16 at once, into a folder unless told; what it says."""

    def call(output="labels", files=None, *, precision="fp32", model=classifier_run.folder, overflow=None, **options):
        embeds = output.endswith((".npy", ".parquet")) or output == "vectors"
        settings = (EmbedSettings if embeds else PredictSettings)(
            model=str(model), files=files or (str(given),), precision=precision, overflow=overflow
        )
        return answer_files(settings, tmp_path / output, **{"device": "cpu", "batch_size": 1, **options})

    return call


def stop_at(number, done=None):
    """A function: an interruption at this document, the first time."""
    done = [] if done is None else done

    def stop(at):
        done.append(at)
        if done.count(number) == 1 and at == number:
            raise KeyboardInterrupt

    return stop


def lines_of(folder):
    """The records of the parts that the manifest names, in its order."""
    manifest = json.loads((folder / "_manifest.json").read_text())
    found = []
    for part in manifest["parts"]:
        records = [json.loads(line) for line in (folder / part["file"]).read_text().splitlines()]
        assert (len(records), sum(r["cut"] for r in records)) == (part["documents"], part["cut"])
        found += records
    return manifest, found


def test_a_folder_keeps_the_parts(predict, given, tmp_path):
    said = predict()
    predict("whole.jsonl")
    manifest, records = lines_of(tmp_path / "labels")
    assert records == [json.loads(line) for line in (tmp_path / "whole.jsonl").read_text().splitlines()]
    assert manifest["finished"] and manifest["left_out"] == {"replaced": 0, "empty": 0, "bad": 0}
    assert manifest["settings"]["files"] == [str(given)] and manifest["input"]["files"] == 3
    names = {"_manifest.json", *(part["file"] for part in manifest["parts"])}
    assert {path.name for path in (tmp_path / "labels").iterdir()} == names
    assert sorted(path.name for path in tmp_path.iterdir()) == ["labels", "posts", "whole.jsonl"]

    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "labels").iterdir()}
    with pytest.raises(InputError, match=r"labels: holds a finished run; add --resume to go on, or remove .*labels"):
        predict()
    assert predict(resume=True) == said
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "labels").iterdir()}


def test_vectors_stay_in_files_of_parquet(predict, tmp_path):
    for name in ("vectors", "whole.parquet"):
        predict(name)
    whole = parquet.read_table(tmp_path / "whole.parquet")
    assert parquet.read_table(tmp_path / "vectors").equals(whole)
    (tmp_path / "vectors" / "part-00001.parquet").unlink()
    predict("vectors", resume=True)
    assert parquet.read_table(tmp_path / "vectors").equals(whole)


def test_what_a_killed_process_leaves_is_done_again(predict, tmp_path):
    """A part that is whole and in no manifest, half of a part, half of a manifest: as `kill -9` may leave them."""
    with pytest.raises(KeyboardInterrupt):
        predict(on_document=stop_at(31))
    folder = tmp_path / "labels"
    manifest, before = lines_of(folder)
    assert not manifest["finished"] and 0 < len(before) < 31
    left = {path: path.read_bytes() for path in folder.glob("part-*")}
    for name in (f"part-{len(left):05d}.jsonl", ".part-00040.1234.tmp.jsonl", "._manifest.1234.tmp.json"):
        (folder / name).write_text('{"document"')
    predict(resume=True)
    predict("again")
    manifest, records = lines_of(folder)
    assert [r["document"] for r in records] == [r["document"] for r in lines_of(tmp_path / "again")[1]]
    assert records[: len(before)] == before and {path: path.read_bytes() for path in left} == left
    names = {"_manifest.json", *(part["file"] for part in manifest["parts"])}
    assert {path.name for path in folder.iterdir()} == names


@pytest.mark.parametrize("name", ["out.jsonl", "out.npy"])
def test_an_interrupted_file_goes_on(predict, tmp_path, name):
    """It appears when it is whole; until then its parts lie in a hidden folder beside it."""
    said, done = predict(f"whole-{name}"), []
    with pytest.raises(KeyboardInterrupt):
        predict(name, on_document=stop_at(20, done))
    assert not (tmp_path / name).exists()
    with pytest.raises(InputError, match=rf"a run was interrupted; add --resume to go on, or remove .*{name}\.parts"):
        predict(name)
    with pytest.raises(InputError, match=r"is another \(--overflow cut there, windows here\); remove "):
        predict(name, resume=True, overflow="windows")
    assert predict(name, resume=True, on_document=stop_at(20, done)) == said
    assert (tmp_path / name).read_bytes() == (tmp_path / f"whole-{name}").read_bytes()
    assert done == [*range(1, 21), *range(17, 61)]  # the second group was in no part
    assert not list(tmp_path.glob(".*"))


def test_a_changed_input_is_another(predict, given, tmp_path):
    predict("labels", files=(str(given / "0.jsonl"),))
    with (given / "0.jsonl").open("a") as file:
        file.write('{"text": "more"}\n')
    with pytest.raises(InputError, match=r"labels: the files were changed since the run began; remove .*labels$"):
        predict("labels", files=(str(given / "0.jsonl"),), resume=True)
    with pytest.raises(InputError, match=r"labels: the interrupted run is another \(--files \['.*0.jsonl'\] there, "):
        predict("labels", resume=True)


def test_a_folder_with_something_else_is_left_alone(predict, given, tmp_path):
    for resume in (False, True):
        with pytest.raises(InputError, match=r"posts: is not empty and holds no run; name another folder"):
            predict("posts", resume=resume)
    (tmp_path / "labels").mkdir()
    (tmp_path / "labels" / "_manifest.json").write_text("{")
    with pytest.raises(InputError, match=r"_manifest\.json: is not valid JSON; remove "):
        predict(resume=True)


def test_a_folder_keeps_the_bad_records(predict, given, tmp_path):
    with (given / "1.jsonl").open("a") as file:
        file.write("{\n")
    with pytest.raises(InputError, match=r"1\.jsonl, line 21: not valid JSON"):
        predict()
    said = predict(max_errors=1, resume=True)
    assert said.startswith("60 documents read") and said.endswith(", 1 left out, as they cannot be read")
    (record,) = map(json.loads, (tmp_path / "labels" / "_errors.jsonl").read_text().splitlines())
    assert (record["file"], record["row"]) == (str(given / "1.jsonl"), 21)
    assert predict(max_errors=1, resume=True) == said and (tmp_path / "labels" / "_errors.jsonl").exists()


def test_a_part_has_whole_groups_and_so_many_documents_at_most(predict, tmp_path, monkeypatch):
    monkeypatch.setattr(output_parts, "PART_SECONDS", 1e9)
    for most, documents in ((25, [16, 16, 16, 12]), (40, [32, 28]), (10, [16, 16, 16, 12])):
        monkeypatch.setattr(output_parts, "PART_DOCUMENTS", most)
        predict(f"{most}")
        assert [part["documents"] for part in lines_of(tmp_path / f"{most}")[0]["parts"]] == documents


def texts_of(folder):
    """What its parts hold, joined."""
    return b"".join((folder / part["file"]).read_bytes() for part in lines_of(folder)[0]["parts"])


@pytest.mark.parametrize("stop", [20, 50])
def test_an_interrupted_run_gives_the_rows_of_another_bit_for_bit(predict, tmp_path, stop):
    """In bfloat16, where a batch of other documents gives other numbers."""
    half = {"batch_size": 3, "precision": "bf16"}  # groups of 48
    with pytest.raises(KeyboardInterrupt):
        predict(on_document=stop_at(stop), **half)
    predict(resume=True, **half)
    predict("whole", **half)
    assert texts_of(tmp_path / "labels") == texts_of(tmp_path / "whole")


DAMAGES = {
    "missing": (lambda part: part.unlink(), "is missing"),
    "halved": (lambda part: part.write_bytes(part.read_bytes()[:300]), r"has 300 bytes of [\d,]+"),
    "zeroed": (lambda part: part.write_bytes(bytes(part.stat().st_size)), "was overwritten"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("finished", [True, False])
def test_damaged_parts_are_made_anew(predict, tmp_path, damage, finished):
    with nullcontext() if finished else pytest.raises(KeyboardInterrupt):
        predict(on_document=stop_at(None if finished else 50))
    predict("whole")
    break_part, state = DAMAGES[damage]
    for number in (0, 2):
        break_part(tmp_path / "labels" / f"part-{number:05d}.jsonl")
    notes, numbers = [], []
    said = predict(resume=True, say=notes.append, on_document=numbers.append)
    damages = [re.fullmatch(rf".*part-0000(\d)\.jsonl: {state}; it is made anew", note) for note in notes]
    assert [found[1] for found in filter(None, damages)] == ["0", "2"]
    assert numbers == list(range(61 - len(numbers), 61)) and len(numbers) == (32 if finished else 44)
    assert said == predict("whole", resume=True) and texts_of(tmp_path / "labels") == texts_of(tmp_path / "whole")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "labels").iterdir()}
    assert predict(resume=True) == said
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "labels").iterdir()}


def test_an_edited_manifest_is_refused(predict, tmp_path):
    predict()
    file = tmp_path / "labels" / "_manifest.json"
    manifest = json.loads(file.read_text())
    for edited in ({**manifest, "parts": manifest["parts"][:2]}, {**manifest, "sha256": None}, {}, []):
        file.write_text(json.dumps(edited))
        with pytest.raises(InputError, match=r"_manifest\.json: is not as the run wrote it; put it back, or remove "):
            predict(resume=True)
    file.write_text(json.dumps(manifest))
    predict(resume=True)


def test_a_model_trained_anew_is_another(predict, classifier_run, tmp_path):
    model = shutil.copytree(classifier_run.folder, tmp_path / "model")
    predict(model=model)
    (model / "scores.json").write_text("{}")  # of an evaluation
    predict(model=model, resume=True)
    for name, edit in (
        ("model.safetensors", lambda content: content[:-1] + bytes([content[-1] ^ 1])),
        ("config.json", lambda content: content + b" "),
        ("tokenizer.json", lambda content: content + b" "),
    ):
        content = (model / name).read_bytes()
        (model / name).write_bytes(edit(content))
        with pytest.raises(InputError, match=r"labels: the model in .*model was changed since the run began; remove "):
            predict(model=model, resume=True)
        (model / name).write_bytes(content)
    predict(model=model, resume=True)


def test_another_precision_is_another_run(predict):
    """Also where a command without the option would compute in it, as on another machine."""
    usual = resolve_precision("auto", "cpu")
    other = "fp32" if usual == "bf16" else "bf16"
    predict(precision=other)
    with pytest.raises(InputError, match=rf"another \(--precision {other} there, {usual} here\)"):
        predict(precision="auto", resume=True)


def test_patterns_stand_for_all_they_match(predict, given, tmp_path):
    one = predict("one", files=(str(given / "[02].json*"), str(given / "1.jsonl")))
    assert one.startswith("60 documents read")
    files = [str(given / f"{number}.jsonl") for number in (0, 2, 1)]
    assert lines_of(tmp_path / "one")[0]["settings"]["files"] == files
    with pytest.raises(InputError, match=r"posts/\*\.csv: matches no file$"):
        predict("none", files=(str(given / "*.csv"),))
