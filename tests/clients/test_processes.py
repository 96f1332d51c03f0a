"""Two and four processes (gloo) that torchrun started train what one trains: every task, and adapting."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file
from torch.testing import assert_close

from torch_linformer.encoders import linearize
from torch_linformer.errors import ANOTHER_ENDED
from torch_linformer.tasks.registry import TASKS

RUNS_OF = Path(__file__).with_name("runs_of.py")
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
ACCELERATE = [sys.executable, "-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes"]  # on a CPU, too
ROWS_AND_PIECES = [
    "classify in pieces",
    "classify on ModernBERT in pieces",
    "mlm in pieces",
    "tags in pieces",
    "mlm in pieces with fsdp",
]  # of four


def tagged(weather):
    """Each word with a tag that it tells, in CoNLL columns."""
    lines = []
    for text, _ in weather:
        lines += [f"{word} {'B-SEA' if word == 'sea' else 'O'}" for word in text.split()]
        lines.append("")
    return "\n".join(lines)


def questions(weather):
    """SQuAD: which word comes first?"""
    return {
        "data": [
            {
                "paragraphs": [
                    {
                        "context": text,
                        "qas": [
                            {
                                "id": str(number),
                                "question": "which?",
                                "answers": [{"text": text.split()[-1], "answer_start": text.rindex(text.split()[-1])}],
                            }
                        ],
                    }
                ]
            }
            for number, (text, _) in enumerate(weather)
        ]
    }


@pytest.fixture(scope="module")
def runs(tmp_path_factory, quick, weather, write_csv, save_source, classifier_run):
    """A function from a run's name to its folder in that of ``one`` process, of ``two``, or of ``four``."""
    from transformers import AutoTokenizer, BertForMaskedLM, BertModel, ModernBertConfig, ModernBertForMaskedLM

    folder = tmp_path_factory.mktemp("processes")
    documents = weather(160, seed=0)
    (folder / "tags.conll").write_text(tagged(documents), encoding="utf-8")
    (folder / "questions.json").write_text(json.dumps(questions(documents)), encoding="utf-8")
    pairs = [(text, " ".join(text.split()[::-1])) for text, _ in documents]
    write_csv(folder / "pairs.csv", pairs, ("query", "document"))
    few = [(text, label if number % 4 == 0 else number) for number, (text, label) in enumerate(documents[:96])]
    write_csv(folder / "few.csv", few)
    write_csv(folder / "targets.csv", pairs, ("source", "target"))
    write_csv(folder / "numbers.csv", [(text, len(text) / 10) for text, _ in documents])
    tokenizer = AutoTokenizer.from_pretrained(classifier_run.folder)
    for name, kind in (("bert", BertModel), ("masked", BertForMaskedLM)):
        save_source(folder / name, tokenizer, lambda config, kind=kind: kind(config).double())
    sizes = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32}
    roles = {f"{role}_token_id": getattr(tokenizer, f"{role}_token_id") for role in ("pad", "cls", "sep")}
    modern = ModernBertConfig(
        **{**sizes, **roles, "vocab_size": len(tokenizer), "max_position_embeddings": 64, "local_attention": 8},
        **{"global_attn_every_n_layers": 2, "bos_token_id": None, "eos_token_id": None, "initializer_range": 0.2},
    )
    modern_bert = ModernBertForMaskedLM(modern)
    for name, model in (("modern", modern_bert), ("linear", linearize(modern_bert, 6, 8, exact_below=20))):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    layerwise = {"projection": "linear", "sharing": "layerwise"}
    common = {**quick, "max_steps": 16, "baseline": False}
    own = {**common, "test": "0.2", "validation": "0.25"}  # which leaves 96: whole batches
    of_text = {**{name: x for name, x in common.items() if name != "model"}, "task": "clm", "packing": False}
    adapting = {
        **{name: quick[name] for name in ("data", "test", "max_length", "batch_size", "device", "precision")},
        # Where exact_below lies between the lengths, a process may have only texts that need no slots. In pieces these
        # have a gradient of zeros then, which moves them by what the optimizer remembers; whole, they have none.
        **{"source": str(folder / "bert"), "k": 6, "window": 8, "steps": 10, "exact_below": 12},
    }
    # One process gives a new head its first weights, so the others begin with the head that it has trained.
    pretrained = {name: x for name, x in common.items() if name not in ("model", "tokenizer", "k")}
    with_head = {**pretrained, "from_model": str(folder / "one" / "head"), "validation": "0.25", "freeze": False}
    runs = {
        "classify": {**common, "lexical": "auto", "class_weights": "balanced"},
        "regress": {**own, "task": "regress", "data": str(folder / "numbers.csv")},
        "mlm": {**common, "task": "mlm", "packing": False},
        "clm": of_text,
        "token-classify": {**own, "task": "token-classify", "data": str(folder / "tags.conll")},
        "qa": {**own, "task": "qa", "data": str(folder / "questions.json")},
        "seq2seq": {**own, "task": "seq2seq", "data": str(folder / "targets.csv")},
        "embed": {**own, "task": "embed", "data": str(folder / "pairs.csv")},
        "classify in pieces": {**common, "lexical": "auto", "window": 8, "context_parallel": 2},
        "head": {**pretrained, "from_model": str(folder / "linear"), "freeze": False},
        "classify on ModernBERT": with_head,
        "classify on ModernBERT in pieces": {**with_head, "context_parallel": 2},
        "mlm in pieces": {**common, "task": "mlm", "packing": False, "context_parallel": 2},
        "tags in pieces": {
            **{**own, "task": "token-classify", "data": str(folder / "tags.conll"), "probe": True},
            **{"context_parallel": 2},
        },
        "mlm in pieces with fsdp": {
            **{**common, "task": "mlm", "packing": False, "model": {"projection": "dynamic"}},
            **{"validation": "0.25", "batch_size": 10, "context_parallel": 2, "fsdp": True},
        },
        "classify with fsdp": {
            **common,
            "lexical": "auto",
            "model": layerwise,
            "fsdp": True,
        },
        "mlm with fsdp": {**common, "task": "mlm", "packing": False, "model": {"projection": "dynamic"}, "fsdp": True},
        "clm with fsdp": {**of_text, "model": {"activation_memory": "checkpoint"}, "fsdp": True},
        "seq2seq with fsdp": {**own, "task": "seq2seq", "data": str(folder / "targets.csv"), "fsdp": True},
        "embed with fsdp": {**own, "task": "embed", "data": str(folder / "pairs.csv"), "fsdp": True},
        "embed by few labels with fsdp": {
            **{**common, "task": "embed", "data": str(folder / "few.csv")},
            **{"validation": quick["test"], "tokens_at_once": 64, "fsdp": True},  # in unequal numbers of parts
        },
        "adapt": adapting,
        "adapt with fsdp": {**adapting, "exact_below": 0, "fsdp": True},
        "adapt masked words with fsdp": {**adapting, "source": str(folder / "masked"), "exact_below": 0, "fsdp": True},
        "adapt ModernBERT with fsdp": {**adapting, "source": str(folder / "modern"), "exact_below": 0, "fsdp": True},
    }
    (folder / "runs.json").write_text(json.dumps(runs), encoding="utf-8")
    environment = {**os.environ, "HF_DATASETS_CACHE": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    for name, command, named in (
        ("one", [sys.executable], []),
        ("two", [*TORCHRUN, "2"], [*NAMES]),
        ("four", [*TORCHRUN, "4"], ROWS_AND_PIECES),
    ):
        subprocess.run([*command, RUNS_OF, folder, name, *named], check=True, timeout=600, env=environment)
    return lambda run, processes: folder / processes / run


NAMES = {task: task for task in ("classify", "regress", "mlm", "clm", "token-classify", "qa", "seq2seq", "embed")}
NAMES |= {
    "classify in pieces": "classify",
    "classify on ModernBERT": "classify",
    "classify on ModernBERT in pieces": "classify",
    "mlm in pieces": "mlm",
    "tags in pieces": "token-classify",
    "mlm in pieces with fsdp": "mlm",
    "classify with fsdp": "classify",
    "mlm with fsdp": "mlm",
    "clm with fsdp": "clm",
    "seq2seq with fsdp": "seq2seq",
    "embed with fsdp": "embed",
    "embed by few labels with fsdp": "embed",
    "adapt": "adapt",
    "adapt with fsdp": "adapt",
    "adapt masked words with fsdp": "adapt",
    "adapt ModernBERT with fsdp": "adapt",
}


@pytest.mark.parametrize(
    ("name", "processes"), [*((name, "two") for name in NAMES), *((name, "four") for name in ROWS_AND_PIECES)]
)
def test_weights_and_scores_are_those_of_one_process(runs, name, processes):
    """Two processes share rows or pieces; in four two pairs share rows, and each pair the pieces of its own."""
    one, several = runs(name, "one"), runs(name, processes)
    assert_close(load_file(several / "model.safetensors"), load_file(one / "model.safetensors"), rtol=1e-4, atol=1e-5)
    adapted = NAMES[name] == "adapt"
    result = "adaptation.json" if adapted else "metrics.json"
    ours, expected = (json.loads((folder / result).read_text(encoding="utf-8")) for folder in (several, one))
    for score in ("start", "end") if adapted else TASKS[NAMES[name]].headline:
        assert ours[score] == pytest.approx(expected[score], abs=1e-4)
    if not adapted:
        assert tokens_of(ours) == pytest.approx(tokens_of(expected))


def test_rows_in_pieces_are_no_step_of_one_process(runs):
    pages = [(runs("tags in pieces", processes) / "report.html").read_text() for processes in ("one", "two")]
    assert ["A training step, compared with full attention" in page for page in pages] == [True, False]


def tokens_of(metrics):
    """How many tokens the training has read."""
    return metrics["train_seconds"] * metrics["training_tokens_per_second"]


@pytest.fixture(scope="module")
def command(quick, as_arguments, tmp_path_factory):
    """A function: start `linformer train` in two processes, by torchrun; its output goes to files."""
    environment = {**os.environ, "HF_DATASETS_CACHE": str(tmp_path_factory.mktemp("cache")), "HF_HUB_OFFLINE": "1"}

    def start(output, *more, launcher=TORCHRUN):
        arguments = as_arguments({**quick, "baseline": False, "output": output})
        with open(f"{output}.out", "w") as out, open(f"{output}.err", "w") as err:
            return subprocess.Popen(
                [*launcher, "2", "-m", "torch_linformer.cli", "train", *arguments, *more],
                **{"stdout": out, "stderr": err, "env": environment, "stdin": subprocess.DEVNULL},
            )

    return start


@pytest.mark.parametrize(
    ("way", "other_way", "share", "launcher"),
    [([], ["--fsdp"], "", ACCELERATE), (["--fsdp"], [], ", 1/2 of every weight", TORCHRUN)],
)
def test_a_process_is_killed(command, train_quickly, tmp_path, way, other_way, share, launcher):
    """The others end with a line; the run goes on to the weights of one that was never stopped; also in one process.

    That one may have been started by ``accelerate launch``.
    """
    whole, killed, alone, changed = (tmp_path / name for name in ("whole", "killed", "alone", "changed"))
    assert command(whole, *way, launcher=launcher).wait(timeout=120) == 0
    shown = Path(f"{whole}.out").read_text()
    assert shown.count(f"2 processes, each with 4 of the 8 rows of a batch{share}\n") == shown.count("trained in ") == 1

    started = command(killed, *way)
    deadline = time.monotonic() + 120
    while not list(killed.glob("checkpoint-1*/complete.json")):
        assert time.monotonic() < deadline and started.poll() is None
        time.sleep(0.01)
    os.kill(max(workers_of(started.pid)), signal.SIGKILL)
    assert started.wait(timeout=60) != 0
    said = [line for line in Path(f"{killed}.err").read_text().splitlines() if line.startswith("linformer: ")]
    assert said == [f"linformer: {ANOTHER_ENDED}"]
    assert not (killed / "metrics.json").exists()

    for folder in (alone, changed):
        shutil.copytree(killed, folder)
    assert command(killed, *way, "--resume").wait(timeout=120) == 0
    assert "going on from" in Path(f"{killed}.out").read_text()
    assert (killed / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()

    assert command(changed, *other_way, "--resume").wait(timeout=120) == 0
    reached, expected = (load_file(folder / "model.safetensors") for folder in (changed, whole))
    assert_close(reached, expected, rtol=1e-3, atol=1e-4)  # the optimizer divides by the size of what is nearly nothing

    assert "going on from" in train_quickly(alone, resume=True)
    assert (alone / "metrics.json").exists()


def workers_of(pid):
    """The processes that torchrun has started."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
